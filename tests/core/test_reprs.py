"""A `__repr__` that raises, of a key, an operation, a callback or an observer, changes no outcome:
messages then name the type."""

import asyncio

import pytest
from helpers import Broken, Listener, Probe, iterations, outcome, raiser, watch_all
from loops import on_virtual_time

from purgatory import (
    IdleTracker,
    OperationCancelled,
    OperationReused,
    OperationState,
    OperationTimeout,
    Purgatory,
    PurgatoryFull,
    ThresholdPurgatory,
    WheelTimer,
    WrongLoop,
)


class Nameless(Probe):
    def __repr__(self):
        raise Broken("no name")


class Key:
    def __repr__(self):
        raise Broken("no name")

    def __call__(self, *_):
        raise ValueError("callback")


class Talker(Listener):
    def operation_ended(self, ended):
        raise ValueError("an observer")

    __repr__ = Key.__repr__


async def try_fails(purgatory):
    bad, other = watch_all(purgatory, [Nameless(60), Probe(60, name="other")])
    bad.trying = lambda one: (one.force_complete(), 1 // 0)
    other.ready = True
    assert purgatory.check_and_complete("key") == 2 and await other == "other"


async def try_lies(purgatory):
    class Liar(Nameless):
        def try_complete(self):
            return True

    with pytest.raises(TypeError, match="Liar"):
        await purgatory.wait(Liar(60), ["key"])


async def hook_fails(purgatory):
    [bad] = watch_all(purgatory, [Nameless(completing=raiser(ValueError()))])
    assert bad.force_complete()


async def two_hooks_fail(purgatory):
    failing = raiser(ValueError())
    _, other = watch_all(purgatory, [Nameless(5, completing=failing, expiring=failing), Probe(5)])
    await asyncio.sleep(10)
    assert other.state is OperationState.EXPIRED


async def refusals(_):
    async with Purgatory(max_pending=1) as purgatory:
        purgatory.try_complete_else_watch(one := Nameless(60), ["key"])
        with pytest.raises(OperationReused, match="Nameless"):
            purgatory.try_complete_else_watch(one, ["key"])
        for wait in (purgatory.wait(Nameless(), [1]), purgatory.wait_for(bool, [Key()])):
            assert type(await outcome(wait)) is PurgatoryFull
        one.cancel()
        assert "Nameless" in str(await outcome(one))
    for call in (purgatory.check_and_complete, purgatory.cancel_for_key):
        with pytest.raises(WrongLoop, match="Key"):
            await asyncio.to_thread(call, Key())


async def waits_time_out(purgatory):
    thresholds = ThresholdPurgatory()
    for wait in (
        purgatory.wait_for(bool, [Key()], 1),
        purgatory.receive(Key(), 1),
        thresholds.wait(Key(), 1, 1),
        thresholds.wait(Key(), 1, 0),
    ):
        assert type(await outcome(wait)) is OperationTimeout
    waiting = asyncio.create_task(outcome(thresholds.wait(Key(), 1)))
    await iterations()
    await thresholds.aclose()
    assert type(await waiting) is OperationCancelled


async def on_idle_fails(_):
    tracker = IdleTracker(10.0, raiser(ValueError()))
    tracker.touch(Key())
    tracker.touch(Key())
    await asyncio.sleep(20)
    assert len(tracker) == 0


async def callback_fails(_):
    timer = WheelTimer()
    for _ in range(3):
        timer.call_later(1, Key())
    await asyncio.sleep(5)
    assert timer.size == 0


async def trigger_is_missed(purgatory):
    for one in (made := watch_all(purgatory, [Probe(5), Probe(5)], [Key()])):
        one.ready = True
    assert await asyncio.gather(*made) == ["", ""]
    assert purgatory.statistics().missed_triggers == 2


async def observer_fails(_):
    async with Purgatory(observer=Talker()) as purgatory:
        for one in watch_all(purgatory, [Probe(60), Probe(60)]):
            one.ready = True
        assert purgatory.check_and_complete("key") == 2


@on_virtual_time
@pytest.mark.parametrize(
    ("scene", "reported"),
    [
        *((try_fails, 1), (try_lies, 0), (hook_fails, 1), (two_hooks_fail, 2), (refusals, 0)),
        *((waits_time_out, 0), (on_idle_fails, 2), (callback_fails, 3), (trigger_is_missed, 0)),
        (observer_fails, 2),
    ],
)
async def test_raising_repr_changes_no_outcome(purgatory, scene, reported, reports):
    await scene(purgatory)
    await iterations(5)
    assert len(reports) == reported
    told = [each["message"] for each in reports if scene not in (observer_fails, callback_fails)]
    assert all("whose __repr__ raised Broken" in message for message in told)
