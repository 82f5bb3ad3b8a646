"""Public entries near the recursion limit: each does all of its work, or raises `RecursionError`
before it has changed anything. Without the kernel this does not hold for checks, first tries and
expiries, because a test of the stack would cost a third of an operation's cycle."""

import asyncio
import gc
import sys
from contextlib import suppress

import pytest
from helpers import Probe, iterations
from loops import on_virtual_time

import purgatory as package
from purgatory import OperationCancelled, OperationState, Purgatory

ENDED = (OperationState.COMPLETED, OperationState.EXPIRED)

pytestmark = pytest.mark.cpython


class Observer:
    def operation_ended(self, ended): ...

    def key_checked(self, key, tried, completed): ...


def at_depth(frames, call):
    """Calls with room for so many more frames on the stack; whether that was enough."""
    depth, frame, limit = 0, sys._getframe(), sys.getrecursionlimit()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    gc.disable()  # finalizers of others would run there, too
    try:
        sys.setrecursionlimit(depth + frames)
        call()
    except RecursionError:
        return False
    finally:
        sys.setrecursionlimit(limit)
        gc.enable()
    return True


class Scene:
    """A purgatory in which operations and tasks wait, and calls of its public entries."""

    def __init__(self, keys, observer):
        self.purgatory = Purgatory(observer=observer)
        self.keys, self.flag, self.coroutines = keys, [], []
        self.operations = [Probe() for _ in range(3)] + [Probe(5.0)]
        for operation in self.operations:
            self.purgatory.try_complete_else_watch(operation, keys)
        self.new, self.ready = Probe(9.0), Probe(9.0, ready=True)
        waits = [self.await_(each) for each in self.operations]
        waits += [self.purgatory.wait_for(lambda: self.flag, keys), self.purgatory.receive("reply")]
        self.tasks = [asyncio.ensure_future(each) for each in waits]

    async def await_(self, operation):
        return await operation

    def start(self, function, *args):
        self.coroutines.append(function(*args))

        def send():
            with suppress(StopIteration):
                self.coroutines[0].send(None)

        return send

    def check(self):
        for operation in self.operations:
            operation.ready = True
        self.flag.append(True)
        self.purgatory.check_and_complete(self.keys[0])

    def prepare(self, entry):
        one, keys = self.purgatory, self.keys
        prepare = {
            "watch": lambda: one.try_complete_else_watch(self.new, keys),
            "watch one": lambda: one.try_complete_else_watch(self.new, ["alone"]),
            "watch ready": lambda: one.try_complete_else_watch(self.ready, keys),
            "watch late": lambda: one.try_complete_else_watch(Probe(0), keys),
            "check": self.check,
            "force": self.operations[0].force_complete,
            "cancel": self.operations[0].cancel,
            "cancel key": lambda: one.cancel_for_key(keys[0]),
            "deliver": lambda: one.deliver("reply", 1),
            "expire": self.operations[3]._timer_expired,
            "wait": lambda: self.start(one.wait, self.new, keys),
            "wait_for": lambda: self.start(one.wait_for, lambda: False, keys, 3.0),
            "receive": lambda: self.start(one.receive, keys[0], 3.0),
            "close": lambda: self.start(one.aclose),
        }[entry]
        return prepare() if entry in ("wait", "wait_for", "receive", "close") else prepare


ENTRIES = [
    *("watch", "watch one", "watch late", "force", "cancel", "cancel key", "deliver", "wait_for"),
    *("receive", "close"),
    *(("watch ready", "check", "expire", "wait") if package.COMPILED else ()),
]


@on_virtual_time
@pytest.mark.parametrize("observer", [None, Observer()], ids=["unobserved", "observed"])
@pytest.mark.parametrize("keys", [["a"], ["a", "b"]], ids="-".join)
@pytest.mark.parametrize("entry", ENTRIES)
async def test_entry_at_each_depth_leaves_no_ghost(entry, keys, observer, reports):
    outcomes = set()
    for frames in range(1, 61):
        scene = Scene(keys, observer)
        one = scene.purgatory
        await iterations(2)
        outcomes.add(at_depth(frames, scene.prepare(entry)))
        assert one.pending >= 0 and one.watched >= 0
        for coroutine in scene.coroutines:
            coroutine.close()
        await asyncio.sleep(1)
        async with asyncio.timeout(30):
            await one.aclose()
            answers = await asyncio.gather(*scene.tasks, return_exceptions=True)
        for answer in answers:
            assert not isinstance(answer, Exception) or isinstance(
                answer, (OperationCancelled, RecursionError)
            )
        assert one.pending == one.watched == 0
        for operation in (*scene.operations, scene.new, scene.ready):
            is_ended = operation.state in ENDED
            assert operation.calls.count("complete") == is_ended
        one._check()
    assert outcomes == {False, True}
