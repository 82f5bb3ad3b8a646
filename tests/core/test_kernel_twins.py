"""What is easily lost where a step is written twice: in Python, and in C for the hot path. Each test
passes with the kernel and without."""

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from threading import RLock
from typing import Any
from unittest import mock

import pytest
from helpers import Broken
from loops import on_asyncio, on_virtual_time

from purgatory import (
    DelayedOperation,
    Ended,
    IdleTracker,
    Purgatory,
    WheelTimer,
)


class Ready(DelayedOperation[str]):
    """Completes once it is ready; a hook raises if its name is `raises`."""

    ready = False
    raises = ""

    def try_complete(self) -> bool:
        if self.raises == "try":
            raise Broken(self.raises)
        return self.ready and self.force_complete()

    def on_complete(self) -> str:
        if self.raises == "complete":
            raise Broken(self.raises)
        return "done"


class Recorder:
    """An observer; its methods raise if `raises`."""

    def __init__(self, raises: bool = False) -> None:
        self.raises = raises
        self.ended: list[Ended] = []

    def operation_ended(self, ended: Ended) -> None:
        self.ended.append(ended)
        if self.raises:
            raise Broken("ended")

    def key_checked(self, key: object, tried: int, completed: int) -> None:
        if self.raises:
            raise Broken("checked")


# Exceptions that are being handled


@on_asyncio
@pytest.mark.parametrize("raises", ["try", "complete"])
async def test_exception_of_hook_leaves_calling_generator_alone(
    reports: list[Any], raises: str
) -> None:
    one: Purgatory[Ready] = Purgatory()
    operation = Ready(30.0)
    one.try_complete_else_watch(operation, ["k"])
    operation.ready, operation.raises = True, raises

    def generator() -> Iterator[None]:
        one.check_and_complete("k")
        yield
        raise ValueError("its own")

    steps = generator()
    try:
        raise KeyError("of the caller")
    except KeyError:
        next(steps)
    with pytest.raises(ValueError, match="its own") as caught:
        next(steps)
    assert caught.value.__context__ is None
    with pytest.raises(Broken):
        operation.result()


@on_asyncio
async def test_exception_of_hook_keeps_its_context() -> None:
    class Chained(Ready):
        def on_complete(self) -> str:
            try:
                raise KeyError("first")
            except KeyError:
                raise Broken("second")  # noqa: B904 - its context is the subject

    one: Purgatory[Chained] = Purgatory()
    operation = Chained(30.0)
    one.try_complete_else_watch(operation, ["k"])
    try:
        raise ValueError("of the caller")
    except ValueError:
        operation.force_complete()
    with pytest.raises(Broken) as caught:
        operation.result()
    assert isinstance(caught.value.__context__, KeyError)


@on_asyncio
async def test_exception_of_observer_is_handled_while_reported() -> None:
    """So `logger.exception` in the loop's exception handler shows it."""
    handled: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(lambda *_: handled.append(sys.exception()))
    one: Purgatory[Ready] = Purgatory(observer=Recorder(raises=True))
    operation = Ready(30.0)
    one.try_complete_else_watch(operation, ["k"])
    operation.ready = True
    one.check_and_complete("k")
    assert [str(error) for error in handled] == ["ended", "checked"]


# Functions


METHODS = [
    (Purgatory, "check_and_complete", ("k",)),
    (WheelTimer, "call_later", (1.0, print)),
    (DelayedOperation, "__init__", (3.0,)),
]


@pytest.mark.parametrize(("cls", "name", "arguments"), METHODS)
def test_autospec_of_method_gets_self(cls: type, name: str, arguments: tuple[object, ...]) -> None:
    with mock.patch.object(cls, name, autospec=True, return_value=None) as method:
        if name == "__init__":
            called = Ready(*arguments)  # type: ignore[arg-type]
        else:
            called = cls()
            getattr(called, name)(*arguments)
    method.assert_called_once_with(called, *arguments)


@pytest.mark.parametrize(("cls", "name", "arguments"), METHODS)
def test_method_is_documented_function(cls: type, name: str, arguments: tuple[object, ...]) -> None:
    method = getattr(cls, name)
    assert inspect.isfunction(method) and inspect.getsource(method)
    assert method.__doc__ and inspect.getdoc(method)


# Interrupted at first use


def interrupt_binding(call: Callable[[], object], at: int) -> bool:
    """Calls, and raises `KeyboardInterrupt` before instruction `at` of what binds an object to its
    loop. False if there are fewer."""
    count, before = 0, sys.gettrace()

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_name not in ("bind", "_bind"):
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        if event == "opcode" and count == at:
            raise KeyboardInterrupt
        return trace

    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for it at `settrace`
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


class Noted(Ready):
    """Appends itself to `called` when it has ended."""

    called: list[object]

    def on_complete(self) -> str:
        self.called.append(self)
        return "done"


def use_once(one: Any, called: list[object]) -> None:
    """Lets something be called in a second."""
    if isinstance(one, WheelTimer):
        one.call_later(1.0, called.append, 1)
    elif isinstance(one, IdleTracker):
        one.touch(1)
    else:
        operation = Noted(1.0)
        operation.called = called
        one.try_complete_else_watch(operation, ["a"])


@on_virtual_time
@pytest.mark.parametrize("kind", [Purgatory, WheelTimer, IdleTracker])
async def test_first_use_that_is_interrupted_can_be_repeated(kind: type, monkeypatch: Any) -> None:
    # A signal comes after calls, but this test interrupts within a `with` too, where the lock stays
    # taken: the one that all objects share would block the threads of all later tests.
    monkeypatch.setattr("purgatory._core.loop._binding", RLock())
    called: list[object] = []
    for at in range(1, 500):
        one: Any = IdleTracker(1.0, called.append) if kind is IdleTracker else kind()
        is_interrupted = interrupt_binding(partial(use_once, one, called), at)
        if not is_interrupted:
            assert at > 20
            break
        called.clear()
        use_once(one, called)
        await asyncio.sleep(2.0)
        assert called, at
