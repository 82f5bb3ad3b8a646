"""The dispatcher alone, with work that only records its name: one hook at a time, and bounded work
in each iteration."""

import asyncio
from contextvars import copy_context

import pytest
from helpers import in_thread, iterations

from purgatory._core.dispatcher import SLICE, Dispatcher, dispatcher_of, running_dispatcher
from purgatory._core.failure import Failure
from purgatory._core.loop import MAX_PER_ITERATION


class Piece:
    """An ended operation. Its hook appends its name to `log`, and calls `then`."""

    def __init__(self, log, name, then=None):
        self.log, self.name, self.then = log, name, then

    def _op_finish(self):
        self.log.append(self.name)
        if self.then is not None:
            self.then()


class Work:
    """A check that completes `left` operations. It appends itself to `queue` while any is left."""

    def __init__(self, log, name, left, queue):
        self.log, self.name, self.left, self.queue, self.completed = log, name, left, queue, 0
        self.context = copy_context()

    def run(self, budget):
        done = min(budget, self.left)
        self.left -= done
        self.completed += done
        self.log.append((self.name, done))
        if self.left:
            self.queue.append(self)
        return done


def busy(dispatcher, *, finished=0, checks=(), threadsafe=()):
    """Defers the given numbers of completions and checks. Returns the log that they write."""
    log = []
    for number in range(finished):
        dispatcher.defer(Piece(log, number))
    for queue, lengths, kind in (
        (dispatcher.checks, checks, "check"),
        (dispatcher.threadsafe_checks, threadsafe, "threadsafe"),
    ):
        queue.extend(
            Work(log, f"{kind} {number}", length, queue) for number, length in enumerate(lengths)
        )
    dispatcher.has_backlog = True
    return log


# One hook at a time


async def test_ends_within_hook_finish_afterwards_in_order():
    def end_others():
        assert dispatcher.is_being_tried(first) and not dispatcher.is_being_tried(
            Piece(log, "stranger")
        )
        for name in ("second", "third"):
            dispatcher.finish(Piece(log, name))
        assert log == ["first"] and dispatcher.has_backlog

    dispatcher, log = running_dispatcher(), []
    first = Piece(log, "first", end_others)
    dispatcher.finish(first)
    assert log == ["first", "second", "third"]
    dispatcher._check()


def test_endless_chain_without_loop_needs_no_stack():
    def end_next():
        if len(log) < 20_000:
            dispatcher.finish(Piece(log, len(log), end_next))

    dispatcher, log = Dispatcher(None), []
    dispatcher.finish(Piece(log, 0, end_next))
    assert log == list(range(20_000))
    dispatcher._check()


async def test_operation_of_interrupted_hook_is_being_tried():
    dispatcher, outer, inner = running_dispatcher(), Piece([], "outer"), Piece([], "inner")
    dispatcher.interrupted.append(outer)
    dispatcher.current = inner
    assert dispatcher.is_being_tried(outer) and dispatcher.is_being_tried(inner)
    dispatcher.interrupted.clear()
    assert not dispatcher.is_being_tried(outer)
    dispatcher.current = None


# Bounded work in each iteration


async def test_iteration_does_bounded_work_in_order():
    dispatcher = running_dispatcher()
    log = busy(dispatcher, finished=2 * MAX_PER_ITERATION + 1)
    dispatcher.run_backlog()
    for done in (MAX_PER_ITERATION, 2 * MAX_PER_ITERATION):
        assert (
            log == list(range(done))
            and dispatcher.continuation_scheduled
            and dispatcher.has_backlog
        )
        await iterations()
    assert log == list(range(2 * MAX_PER_ITERATION + 1))
    dispatcher._check()


async def test_kinds_alternate_in_slices_or_one_uses_all():
    dispatcher = running_dispatcher()
    log = busy(dispatcher, finished=SLICE, checks=[2 * SLICE, SLICE], threadsafe=[SLICE])
    assert dispatcher.run_backlog() == 3 * SLICE  # the slices of checks
    assert log[:SLICE] == list(range(SLICE))
    # The first check now queues behind the second, which is the only other work.
    assert log[SLICE:] == [("check 0", SLICE), ("threadsafe 0", SLICE), ("check 1", SLICE)]
    await iterations()
    assert log[-1] == ("check 0", SLICE)
    dispatcher._check()


async def test_key_named_by_thread_starts_after_one_slice():
    dispatcher = running_dispatcher()
    log = busy(dispatcher, checks=[1000 * SLICE], threadsafe=[1000 * SLICE, 1000 * SLICE, 1])
    dispatcher.run_backlog()
    await iterations()
    names = [name for name, _ in log]
    assert names[:6] == [
        "check 0",
        "threadsafe 0",
        "check 0",
        "threadsafe 1",
        "check 0",
        "threadsafe 2",
    ]
    assert max(done for _, done in log) == SLICE
    for queue in (dispatcher.checks, dispatcher.threadsafe_checks):
        queue.clear()
    await iterations()
    dispatcher._check()


async def test_new_work_runs_at_once_without_the_backlog():
    dispatcher = running_dispatcher()
    log = busy(dispatcher, finished=MAX_PER_ITERATION + 1)
    dispatcher.run_backlog()
    own = []
    dispatcher.finish(Piece(own, "mine"))
    assert (
        own == ["mine"]
        and len(log) == MAX_PER_ITERATION
        and dispatcher.run_backlog() == 0
        and len(log) == MAX_PER_ITERATION
    )
    await iterations()
    assert len(log) == MAX_PER_ITERATION + 1
    dispatcher._check()


# Ways out


async def test_deferred_work_runs_although_a_hook_exits():
    def fail():
        dispatcher.finish(Piece(log, "second", lambda: 1 // 0))
        dispatcher.finish(Piece(log, "third"))
        raise SystemExit

    dispatcher, log = running_dispatcher(), []
    with pytest.raises(SystemExit):
        dispatcher.finish(Piece(log, "first", fail))
    assert dispatcher.current is None
    with pytest.raises(ZeroDivisionError):
        dispatcher.run_backlog()
    assert (
        log == ["first", "second"]
        and dispatcher.current is None
        and dispatcher.continuation_scheduled
    )
    await iterations()
    assert log == ["first", "second", "third"]
    dispatcher._check()


async def test_exit_requests_one_iteration_if_work_is_left(
    monkeypatch,
):
    def count(*args, **options):
        asked.append(args)
        return call_soon(*args, **options)

    loop = asyncio.get_running_loop()
    call_soon, asked = loop.call_soon, []
    monkeypatch.setattr(loop, "call_soon", count)
    dispatcher, log = running_dispatcher(), []
    dispatcher.continue_if_backlog()
    assert not dispatcher.continuation_scheduled
    dispatcher.defer(Piece(log, "left"))
    dispatcher.current = "a hook"  # the interrupted caller continues the backlog
    dispatcher.continue_if_backlog()
    assert not dispatcher.continuation_scheduled
    dispatcher.current = None
    for _ in range(2):
        dispatcher.continue_if_backlog()
    assert len(asked) == 1
    await iterations()
    assert log == ["left"]
    dispatcher._check()


def test_closed_loop_is_not_called():
    loop = asyncio.new_event_loop()
    dispatcher = dispatcher_of(loop)
    loop.close()
    dispatcher.defer(Piece([], "late"))
    dispatcher.continue_later()
    assert not dispatcher.continuation_scheduled


async def test_unretrieved_failures_are_reported_after_two_iterations(reports):
    dispatcher = running_dispatcher()
    unretrieved, retrieved, later = (
        Failure(ZeroDivisionError(name)) for name in ("unretrieved", "retrieved", "later")
    )
    dispatcher.report_unretrieved("first", unretrieved)
    dispatcher.report_unretrieved("second", retrieved)
    await iterations()
    dispatcher.report_unretrieved("third", later)
    retrieved.retrieved = True
    await iterations()
    assert [(report["message"], report["exception"]) for report in reports] == [
        ("first", unretrieved.exception)
    ]
    await iterations()
    assert [report["message"] for report in reports] == [
        "first",
        "third",
    ] and dispatcher._unretrieved == []


# One dispatcher for each loop


async def test_each_loop_or_loopless_thread_has_one_dispatcher():
    def look():
        found.append(running_dispatcher())
        assert running_dispatcher() is found[-1]

    found = []
    for _ in range(2):
        in_thread(look)
    look()
    assert (
        found[2] is dispatcher_of(asyncio.get_running_loop())
        and len({id(each) for each in found}) == 3
    )
