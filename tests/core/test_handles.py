"""Which methods may be called from where: all public methods of all handles, from a thread with its
own loop, from a thread without a loop, from another loop, and outside any loop. `REFUSED` means
that the call raises `WrongLoop` and changes nothing."""

import asyncio
from collections.abc import Callable
from inspect import iscoroutine
from typing import Any

import pytest
from helpers import Broken, Probe, in_thread, iterations

from purgatory import (
    DelayedOperation,
    IdleTracker,
    Purgatory,
    Reply,
    ThresholdPurgatory,
    Timeout,
    TimerTask,
    WheelTimer,
    WrongLoop,
    timeout,
)

REFUSED, ANY = "refused", "any thread"

TABLE: dict[type, dict[str, tuple[str, Callable[[Any], Any]]]] = {
    Purgatory: {
        "try_complete_else_watch": (
            REFUSED,
            lambda it: it.try_complete_else_watch(Probe(), ["key"]),
        ),
        "wait": (REFUSED, lambda it: it.wait(Probe(), ["key"])),
        "wait_for": (REFUSED, lambda it: it.wait_for(bool, ["key"])),
        "receive": (REFUSED, lambda it: it.receive("key")),
        "expect": (REFUSED, lambda it: it.expect("key").__enter__()),
        "deliver": (REFUSED, lambda it: it.deliver("key", 1)),
        "check_and_complete": (REFUSED, lambda it: it.check_and_complete("key")),
        "checkAndComplete": (REFUSED, lambda it: it.checkAndComplete("key")),
        "cancel_for_key": (REFUSED, lambda it: it.cancel_for_key("key")),
        "acancel_for_key": (REFUSED, lambda it: it.acancel_for_key("key")),
        "fail": (REFUSED, lambda it: it.fail("key", ValueError())),
        "fail_all": (REFUSED, lambda it: it.fail_all(ValueError())),
        "aclose": (REFUSED, lambda it: it.aclose()),
        "check_and_complete_threadsafe": (
            ANY,
            lambda it: it.check_and_complete_threadsafe("other"),
        ),
        "deliver_threadsafe": (ANY, lambda it: it.deliver_threadsafe("other", 1)),
        "statistics": (ANY, lambda it: it.statistics()),
        "keys": (ANY, lambda it: list(it.keys())),
        "name": (ANY, lambda it: it.name),
        "pending": (ANY, lambda it: it.pending),
        "watched": (ANY, lambda it: it.watched),
    },
    DelayedOperation: {
        "force_complete": (REFUSED, lambda it: it.force_complete()),
        "cancel": (REFUSED, lambda it: it.cancel()),
        "state": (ANY, lambda it: it.state),
        "is_completed": (ANY, lambda it: it.is_completed),
        "deadline": (ANY, lambda it: it.deadline),
    },
    Reply: {  # for leaving its block in another thread, see `test_closed_coroutines`
        "__enter__": (REFUSED, lambda it: it.__enter__()),
        "__await__": (REFUSED, lambda it: next(it.__await__())),
        "__repr__": (ANY, repr),
    },
    ThresholdPurgatory: {
        "wait": (REFUSED, lambda it: it.wait("key", 5)),
        "advance": (REFUSED, lambda it: it.advance("key", 9)),
        "fail": (REFUSED, lambda it: it.fail("key", ValueError())),
        "forget": (REFUSED, lambda it: it.forget("key")),
        "aclose": (REFUSED, lambda it: it.aclose()),
        "advance_threadsafe": (ANY, lambda it: it.advance_threadsafe("key", 0)),
        "value": (ANY, lambda it: it.value("key")),
        "statistics": (ANY, lambda it: it.statistics()),
        "name": (ANY, lambda it: it.name),
        "pending": (ANY, lambda it: it.pending),
    },
    WheelTimer: {
        "call_later": (REFUSED, lambda it: it.call_later(1, print)),
        "call_at": (REFUSED, lambda it: it.call_at(1, print)),
        "close": (REFUSED, lambda it: it.close()),
        "size": (ANY, lambda it: it.size),
    },
    TimerTask: {
        "cancel": (REFUSED, lambda it: it.cancel()),
        "reschedule": (REFUSED, lambda it: it.reschedule(it.when() + 1)),
        "cancelled": (ANY, lambda it: it.cancelled()),
        "when": (ANY, lambda it: it.when()),
    },
    Timeout: {
        "reschedule": (REFUSED, lambda it: it.reschedule(None)),
        "expired": (ANY, lambda it: it.expired()),
        "when": (ANY, lambda it: it.when()),
    },
    IdleTracker: {
        "touch": (REFUSED, lambda it: it.touch("new")),
        "remove": (REFUSED, lambda it: it.remove("id")),
        "close": (REFUSED, lambda it: it.close()),
    },
}
HOOKS = {"try_complete", "on_complete", "on_expiration", "result"}
"""Methods that the library calls itself, or that raise while an operation is pending."""

ROWS = [
    pytest.param(cls, rule, call, id=f"{cls.__name__}.{name}")
    for cls, methods in TABLE.items()
    for name, (rule, call) in methods.items()
    if hasattr(cls, name)
]


def test_table_has_every_public_method() -> None:
    for cls, methods in TABLE.items():
        public = {name for name in vars(cls) if not name.startswith("_")}
        assert public <= {*methods} | HOOKS, cls


def make(cls: type, purgatory: Purgatory[Any]) -> tuple[Any, Callable[[], object]]:
    """A handle in use, and the state that must not change."""
    if cls is Purgatory or cls is DelayedOperation:
        operation = Probe(30)
        purgatory.try_complete_else_watch(operation, ["key"])
        handle: Any = purgatory if cls is Purgatory else operation
        return handle, lambda: (purgatory.pending, purgatory.watched, operation.state)
    if cls is Reply:
        reply = purgatory.expect("key").__enter__()
        return reply, lambda: (purgatory.pending, purgatory.watched, repr(reply))
    if cls is ThresholdPurgatory:
        thresholds: ThresholdPurgatory[str, int] = ThresholdPurgatory()
        thresholds.advance("key", 1)
        with pytest.raises(StopIteration):  # until the first wait it belongs to no loop
            thresholds.wait("key", 1).send(None)
        return thresholds, lambda: (thresholds.value("key"), thresholds.pending, repr(thresholds))
    if cls is IdleTracker:
        tracker: IdleTracker[str] = IdleTracker(30, print)
        tracker.touch("id")
        return tracker, lambda: [*tracker]
    timer = WheelTimer()
    task = timer.call_later(30, print)
    return timer if cls is WheelTimer else task, lambda: (timer.size, task.when(), task.cancelled())


def call_in_thread(call: Callable[[Any], Any], handle: Any, has_loop: bool) -> None:
    """Calls a method in another thread, with or without a loop of its own."""

    async def run() -> None:
        result = call(handle)
        if iscoroutine(result):
            await result

    def step() -> None:
        result = call(handle)
        if iscoroutine(result):
            with pytest.raises(StopIteration):
                result.send(None)

    in_thread(lambda: asyncio.run(run()) if has_loop else step())


@pytest.mark.parametrize("has_loop", [False, True], ids=["no loop", "own loop"])
@pytest.mark.parametrize(("cls", "rule", "call"), ROWS)
async def test_handle_allows_or_refuses_other_threads(
    cls: type, rule: str, call: Callable[[Any], Any], has_loop: bool
) -> None:
    async with Purgatory[Any]() as purgatory, timeout(30) as limit:
        handle, read = (limit, limit.when) if cls is Timeout else make(cls, purgatory)
        before = read()
        if rule is REFUSED:
            with pytest.raises(WrongLoop):
                call_in_thread(call, handle, has_loop)
        else:
            call_in_thread(call, handle, has_loop)
        await iterations(2)
        assert read() == before


@pytest.mark.parametrize(
    ("cls", "rule", "call"), [row for row in ROWS if row.values[0] is not Timeout]
)
def test_handle_refuses_other_loops_and_none(
    cls: type, rule: str, call: Callable[[Any], Any], loop_factory: Any
) -> None:
    async def begin() -> Any:
        purgatory = Purgatory[Any]()
        return purgatory, make(cls, purgatory)

    async def elsewhere(handle: Any) -> None:
        result = call(handle)
        if iscoroutine(result):
            await result

    with (
        asyncio.Runner(loop_factory=loop_factory) as home,
        asyncio.Runner(loop_factory=loop_factory) as other,
    ):
        purgatory, (handle, read) = home.run(begin())
        before = read()
        if rule is REFUSED:
            with pytest.raises(
                WrongLoop, match=r"bound to .* but the running loop is .*loop_scope"
            ):
                other.run(elsewhere(handle))
            with pytest.raises(WrongLoop, match="but no event loop is running"):
                result = call(handle)
                if iscoroutine(result):
                    result.send(None)
        else:
            other.run(elsewhere(handle))
        assert read() == before
        home.run(purgatory.aclose())


@pytest.mark.parametrize("cls", [Purgatory, ThresholdPurgatory, WheelTimer, IdleTracker])
def test_unused_object_is_bound_by_its_first_loop(cls: type) -> None:
    handle = IdleTracker(5, print) if cls is IdleTracker else cls()
    use = {
        Purgatory: lambda: handle.try_complete_else_watch(Probe(), ["key"]),
        ThresholdPurgatory: lambda: handle.wait("key", 1).send(None),
        WheelTimer: lambda: handle.call_later(5, print),
        IdleTracker: lambda: handle.touch("id"),
    }[cls]

    async def main() -> None:
        use()
        closed = handle.close() if hasattr(handle, "close") else await handle.aclose()
        assert closed in (None, 0, 1) or len(closed) == 1

    with pytest.raises(WrongLoop, match="no event loop is running in this thread to be bound to"):
        use()
    asyncio.run(main())


@pytest.mark.parametrize("is_in_a_loop", [False, True])
def test_unused_object_finds_nothing_and_binds_nothing(is_in_a_loop: bool) -> None:
    purgatory, thresholds = Purgatory[Any](), ThresholdPurgatory[str, int]()

    async def use() -> None:
        for method in ("check_and_complete", "cancel_for_key"):
            assert not getattr(purgatory, method)("key")
            with pytest.raises(TypeError):
                getattr(purgatory, method)([])
        assert purgatory.deliver("key", "value") == purgatory.fail("key", Broken()) == 0
        assert purgatory.fail_all(Broken()) == 0
        assert thresholds.advance("key", 3) == thresholds.fail("key", Broken()) == 0
        assert thresholds.forget("key") and not thresholds.forget("key")
        thresholds.advance("key", 5)

    async def wait() -> None:
        assert await thresholds.wait("key", 4) == 5
        assert purgatory.try_complete_else_watch(Probe(ready=True), ["key"])
        await purgatory.aclose()
        await thresholds.aclose()

    if is_in_a_loop:
        asyncio.run(use())
    else:
        with pytest.raises(StopIteration):
            use().send(None)
    asyncio.run(wait())


def test_loop_run_by_another_thread_keeps_its_objects() -> None:
    loop, purgatory, timer = asyncio.new_event_loop(), Purgatory[Any](), WheelTimer()

    async def use() -> bool:
        timer.call_later(30, print).cancel()
        async with timeout(30) as limit:
            limit.reschedule(asyncio.get_running_loop().time() + 5)
            waiting = asyncio.create_task(purgatory.wait(Probe(30, name="answer"), ["key"]))
            await iterations(2)
            [operation] = purgatory.cancel_for_key("key")
            await asyncio.wait([waiting])
        return operation.is_completed

    async def leave() -> None:
        await purgatory.aclose()
        timer.close()

    assert loop.run_until_complete(use())
    for step in (use, use, leave):
        in_thread(loop.run_until_complete, step())
    loop.close()
