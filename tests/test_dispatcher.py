"""One hook at a time, and portions: the dispatcher by itself, with pieces of work that only note that they were done."""

import asyncio
import threading

import pytest
from helpers import turns

from purgatory._dispatcher import SLICE, Dispatcher, dispatcher_of, running_dispatcher
from purgatory._failure import Failure
from purgatory._timer import PORTION


class Piece:
    """An operation that has ended. Its hook notes its name in `log`, and calls `then`."""

    def __init__(self, log, name, then=None):
        self.log, self.name, self.then = log, name, then

    def _op_conclude(self):
        self.log.append(self.name)
        if self.then is not None:
            self.then()


class Work:
    """A check of `left` operations, of which it completes each one. It stands in `line` again while any is left."""

    def __init__(self, log, name, left, line):
        self.log, self.name, self.left, self.line, self.completed = log, name, left, line, 0

    def advance(self, portion):
        done = min(portion, self.left)
        self.left -= done
        self.completed += done
        self.log.append((self.name, done))
        if self.left:
            self.line.append(self)
        return done


def busy(dispatcher, *, claimed=0, checks=(), named=()):
    """Has so much put off at once. Returns what is then noted."""
    log = []
    for number in range(claimed):
        dispatcher.put_off(Piece(log, number))
    for line, lengths, kind in ((dispatcher.checks, checks, "check"), (dispatcher.named, named, "named")):
        line.extend(Work(log, f"{kind} {number}", length, line) for number, length in enumerate(lengths))
    dispatcher.unsettled = True
    return log


# One hook at a time


async def test_what_a_hook_ends_is_concluded_when_it_has_returned_and_in_order():
    def end_others():
        assert dispatcher.is_trying(first) and not dispatcher.is_trying(Piece(log, "stranger"))
        for name in ("second", "third"):
            dispatcher.conclude(Piece(log, name))
        assert log == ["first"] and dispatcher.unsettled

    dispatcher, log = running_dispatcher(), []
    first = Piece(log, "first", end_others)
    dispatcher.conclude(first)
    assert log == ["first", "second", "third"]
    dispatcher._check()


def test_without_a_loop_a_chain_of_any_length_is_concluded_at_once_and_needs_no_stack():
    def end_next():
        if len(log) < 20_000:
            dispatcher.conclude(Piece(log, len(log), end_next))

    dispatcher, log = Dispatcher(None), []
    dispatcher.conclude(Piece(log, 0, end_next))
    assert log == list(range(20_000))
    dispatcher._check()


async def test_whose_hook_is_interrupted_is_being_tried_as_well():
    dispatcher, outer, inner = running_dispatcher(), Piece([], "outer"), Piece([], "inner")
    dispatcher.outer.append(outer)
    dispatcher.current = inner
    assert dispatcher.is_trying(outer) and dispatcher.is_trying(inner)
    dispatcher.outer.clear()
    assert not dispatcher.is_trying(outer)
    dispatcher.current = None


# A portion in each turn


async def test_a_portion_is_done_in_each_turn_and_the_rest_follows_in_order():
    dispatcher = running_dispatcher()
    log = busy(dispatcher, claimed=2 * PORTION + 1)
    dispatcher.settle()
    for done in (PORTION, 2 * PORTION):
        assert log == list(range(done)) and dispatcher.is_put_off and dispatcher.unsettled
        await turns()
    assert log == list(range(2 * PORTION + 1))
    dispatcher._check()


async def test_kinds_of_work_take_turns_in_slices_and_who_is_alone_has_the_whole_portion():
    dispatcher = running_dispatcher()
    log = busy(dispatcher, claimed=SLICE, checks=[2 * SLICE, SLICE], named=[SLICE])
    assert dispatcher.settle() == 3 * SLICE  # those of checks
    assert log[:SLICE] == list(range(SLICE))
    # The first check stands behind the second one now, which is alone with it.
    assert log[SLICE:] == [("check 0", SLICE), ("named 0", SLICE), ("check 1", SLICE)]
    await turns()
    assert log[-1] == ("check 0", SLICE)
    dispatcher._check()


async def test_a_key_that_is_named_behind_others_is_begun_after_a_slice_of_each():
    dispatcher = running_dispatcher()
    log = busy(dispatcher, checks=[1000 * SLICE], named=[1000 * SLICE, 1000 * SLICE, 1])
    dispatcher.settle()
    await turns()
    names = [name for name, _ in log]
    assert names[:6] == ["check 0", "named 0", "check 0", "named 1", "check 0", "named 2"]
    assert max(done for _, done in log) == SLICE
    for line in (dispatcher.checks, dispatcher.named):
        line.clear()
    await turns()
    dispatcher._check()


async def test_who_comes_while_work_is_put_off_has_its_own_done_and_none_of_the_backlog():
    dispatcher = running_dispatcher()
    log = busy(dispatcher, claimed=PORTION + 1)
    dispatcher.settle()
    own = []
    dispatcher.conclude(Piece(own, "mine"))
    assert own == ["mine"] and len(log) == PORTION and dispatcher.settle() == 0 and len(log) == PORTION
    await turns()
    assert len(log) == PORTION + 1
    dispatcher._check()


# Ways out


async def test_what_was_put_off_is_done_also_if_a_hook_exits():
    def fail():
        dispatcher.conclude(Piece(log, "second", lambda: 1 // 0))
        dispatcher.conclude(Piece(log, "third"))
        raise SystemExit

    dispatcher, log = running_dispatcher(), []
    with pytest.raises(SystemExit):
        dispatcher.conclude(Piece(log, "first", fail))
    assert dispatcher.current is None
    with pytest.raises(ZeroDivisionError):
        dispatcher.settle()
    assert log == ["first", "second"] and dispatcher.current is None and dispatcher.is_put_off
    await turns()
    assert log == ["first", "second", "third"]
    dispatcher._check()


async def test_on_a_way_out_the_loop_is_asked_for_a_turn_once_and_only_if_anything_is_left(monkeypatch):
    def count(*args, **options):
        asked.append(args)
        return call_soon(*args, **options)

    loop = asyncio.get_running_loop()
    call_soon, asked = loop.call_soon, []
    monkeypatch.setattr(loop, "call_soon", count)
    dispatcher, log = running_dispatcher(), []
    dispatcher.continue_if_unsettled()
    assert not dispatcher.is_put_off
    dispatcher.put_off(Piece(log, "left"))
    dispatcher.current = "a hook"  # whoever runs it settles
    dispatcher.continue_if_unsettled()
    assert not dispatcher.is_put_off
    dispatcher.current = None
    for _ in range(2):
        dispatcher.continue_if_unsettled()
    assert len(asked) == 1
    await turns()
    assert log == ["left"]
    dispatcher._check()


def test_a_loop_that_is_closed_is_asked_for_nothing():
    loop = asyncio.new_event_loop()
    dispatcher = dispatcher_of(loop)
    loop.close()
    dispatcher.put_off(Piece([], "late"))
    dispatcher.continue_later()
    assert not dispatcher.is_put_off


async def test_failures_that_nobody_has_seen_two_turns_later_are_reported(reports):
    dispatcher = running_dispatcher()
    unseen, seen, later = (Failure(ZeroDivisionError(name)) for name in ("unseen", "seen", "later"))
    dispatcher.report_soon("first", unseen)
    dispatcher.report_soon("second", seen)
    await turns()
    dispatcher.report_soon("third", later)
    seen.seen = True
    await turns()
    assert [(report["message"], report["exception"]) for report in reports] == [("first", unseen.exception)]
    await turns()
    assert [report["message"] for report in reports] == ["first", "third"] and dispatcher.unseen == []


# Whose it is


async def test_a_loop_has_one_and_a_thread_without_a_loop_has_one_of_its_own():
    def look():
        found.append(running_dispatcher())
        assert running_dispatcher() is found[-1]

    found = []
    for _ in range(2):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    look()
    assert found[2] is dispatcher_of(asyncio.get_running_loop()) and len({id(each) for each in found}) == 3
