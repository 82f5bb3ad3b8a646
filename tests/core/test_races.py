"""Every end of an operation together with every other end, in one iteration of the loop and in both
orders."""

import asyncio
import gc
import weakref

import pytest
from helpers import Probe, in_thread, iterations, outcome
from invariants import check, deadlines
from loops import on_every_loop

from purgatory import OperationCancelled, OperationState, Purgatory
from purgatory.testing import VirtualTimeLoop

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


class Race:
    """An operation that one task owns through `wait` and another awaits, due at `instant`."""

    def __init__(self, name="answer", timeout=60.0):
        self.loop = asyncio.get_running_loop()
        self.name = name
        self.instant = self.loop.time() + timeout
        self.purgatory = Purgatory(tick=0.001)
        self.started = []
        self.accepted = []
        self.tasks = []

    async def begin(self, **hooks):
        self.operation = Probe(deadline=self.instant, name=self.name, **hooks)
        self.owner = asyncio.create_task(
            outcome(self.purgatory.wait(self.operation, ["key", "second"]))
        )
        await iterations(2)
        self.other = asyncio.create_task(outcome(self.operation))
        await iterations(2)

    def end(self, how):
        self.started.append(how)
        getattr(self, how)()

    def check(self):
        self.operation.ready = True
        self.accepted.append(self.purgatory.check_and_complete("second") == 1)

    def force(self):
        self.accepted.append(self.operation.force_complete())

    def cancel(self):
        self.accepted.append(self.operation.cancel())

    def cancel_key(self):
        self.accepted.append(self.purgatory.cancel_for_key("key") == [self.operation])

    def cancel_task(self):
        self.owner.cancel()

    def close(self):
        self.tasks.append(self.loop.create_task(self.purgatory.aclose()))

    def drain(self):
        self.tasks.append(self.loop.create_task(self.purgatory.aclose(0.005)))

    def signal(self):
        self.operation.ready = True
        in_thread(self.purgatory.check_and_complete_threadsafe, "key")


AT_ONCE = {"check": COMPLETED, "force": COMPLETED, "cancel": CANCELLED, "cancel_key": CANCELLED}
SOON = ["cancel_task", "close", "drain", "signal"]
ENDS = [*AT_ONCE, *SOON]


async def verify(race, *ends):
    """Checks the state that any race must leave."""
    operation, purgatory = race.operation, race.purgatory
    owner, other = await outcome(race.owner), await race.other
    await asyncio.gather(*race.tasks)
    await iterations(3)
    statistics = purgatory.statistics()
    ended = {
        COMPLETED: statistics.completed,
        EXPIRED: statistics.expired,
        CANCELLED: statistics.cancelled,
    }
    assert sum(ended.values()) == ended[operation.state] == 1
    assert operation.calls.count("complete") == (operation.state is not CANCELLED)
    assert operation.calls.count("expire") == (operation.state is EXPIRED)
    if operation.state is CANCELLED:
        assert isinstance(other, OperationCancelled)
        assert isinstance(owner, (OperationCancelled, asyncio.CancelledError))
    else:
        assert other == race.name
        assert owner == race.name or isinstance(owner, asyncio.CancelledError)
    assert "cancel_task" in ends or not isinstance(owner, asyncio.CancelledError)
    cancelled = [one for task in race.tasks for one in task.result()]
    assert cancelled in ([], [operation]) and (not cancelled or operation.state is CANCELLED)
    assert sum(race.accepted) <= 1
    assert statistics.pending == statistics.watched == statistics.keys == deadlines(purgatory) == 0
    check(purgatory)
    reference = weakref.ref(operation)
    race.operation = race.owner = race.other = race.tasks = None
    del operation, owner, other, cancelled
    await iterations()
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("first", ENDS)
@pytest.mark.cpython
async def test_exactly_one_of_two_ends_wins(first):
    for second in ENDS:
        race = Race()
        await race.begin()
        race.end(first)
        race.end(second)
        if first in AT_ONCE:
            assert race.operation.state is AT_ONCE[first] and race.accepted[0], second
        elif second in AT_ONCE and race.operation.is_completed:
            assert race.operation.state in (AT_ONCE[second], CANCELLED), second
        await verify(race, first, second)


@on_every_loop
@pytest.mark.parametrize("ending", ENDS)
@pytest.mark.parametrize("expiry_first", [True, False], ids=["after expiry", "before expiry"])
@pytest.mark.cpython
async def test_exactly_one_of_end_and_deadline_wins(ending, expiry_first):
    loop = asyncio.get_running_loop()
    is_virtual = isinstance(loop, VirtualTimeLoop)
    race = Race(timeout=1.0 if is_virtual else 0.05)
    states = []
    ended = loop.create_future()

    def end():
        states.append(race.operation.state)
        race.end(ending)
        ended.set_result(None)

    if is_virtual and not expiry_first:
        loop.call_at(race.instant, end)
    await race.begin()  # a busy machine may take until after that instant
    if not is_virtual:
        loop.call_at(race.instant, end)
    elif expiry_first:
        # Late enough: a bucket of the wheel may open, and set its timer, only when a wider one has
        # begun.
        loop.call_at(race.instant - 0.001, loop.call_at, race.instant, end)
    await ended
    if is_virtual:
        await asyncio.sleep(0.02)
        # Timers of the same instant run in the order of their creation.
        assert states == [EXPIRED if expiry_first else PENDING]
        expected = EXPIRED if expiry_first or ending not in AT_ONCE else AT_ONCE[ending]
        if not expiry_first and ending == "signal":
            expected = COMPLETED  # by the last try, since its condition holds
        if not expiry_first and ending == "cancel_task":
            expected = CANCELLED  # its task has left, so there is no last try
        assert race.operation.state in ((EXPIRED, CANCELLED) if ending == "close" else (expected,))
    await verify(race, ending)


@pytest.mark.parametrize("ending", ENDS)
@pytest.mark.parametrize("hook", ["trying", "completing", "expiring"])
@pytest.mark.cpython
async def test_end_inside_own_hook_has_one_outcome(hook, ending):
    race = Race(timeout=0.05 if hook == "expiring" else 60)
    hooked_once = race.loop.create_future()

    def hooked(_):
        if not race.started:
            race.end(ending)
            hooked_once.set_result(None)
        return "answer"

    if hook == "expiring":
        await race.begin(expiring=hooked)  # before the deadline, however busy the machine
        await hooked_once
    else:
        await race.begin()
        setattr(race.operation, hook, hooked)
        race.operation.ready = True
        race.purgatory.check_and_complete("key")
    assert race.started == [ending]
    if hook == "expiring":
        assert race.operation.state is EXPIRED
    elif hook == "completing" or ending not in ("cancel", "cancel_key", "close"):
        assert race.operation.state is COMPLETED
    await verify(race, ending)
