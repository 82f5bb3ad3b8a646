"""Views of a purgatory from outside: exact for few operations, bounded for many. Looking changes
nothing."""

import asyncio

import pytest
from helpers import Listener, Probe, watch_all
from loops import on_virtual_time

from purgatory import (
    OperationCancelled,
    Purgatory,
    ThresholdPurgatory,
    WatchedKey,
    WrongLoop,
    _inspect,
    inspect,
)


@on_virtual_time
async def test_small_purgatory_is_shown_whole():
    async with Purgatory("jobs", max_pending=9) as jobs:
        jobs.try_complete_else_watch(Probe(0.5), ["a", "b"])
        await asyncio.sleep(0.25)
        jobs.try_complete_else_watch(Probe(100), ["b", "c", "d", "e", "f", "g"])
        jobs.try_complete_else_watch(Probe(1e5), ["b"])
        jobs.try_complete_else_watch(Probe(), [("h", 1)])
        seen = inspect(jobs)
        assert seen.statistics == jobs.statistics()
        assert (seen.now, seen.tick, seen.max_pending, seen.is_closed) == (0.25, 0.001, 9, False)
        assert (seen.looked_at, seen.without_deadline) == (4, 1)
        assert [tuple(each) for each in seen.oldest] == [
            ("Probe", ("a", "b"), 0, 0.0, 0.5),
            ("Probe", ("b", "c", "d", "e"), 2, 0.25, 100.25),
            ("Probe", ("b",), 0, 0.25, 100000.25),
            ("Probe", (("h", 1),), 0, None, None),
        ]
        assert seen.hottest[0] == WatchedKey("b", 3)
        assert {each.key for each in seen.hottest} == {*"abcdefg", ("h", 1)}
    assert inspect(jobs).is_closed and inspect(jobs).looked_at == 0


@on_virtual_time
async def test_caller_limits_number_of_operations_and_keys():
    async with Purgatory() as jobs:
        for number in range(20):
            jobs.try_complete_else_watch(Probe(50), [number % 4, "all"])
            await asyncio.sleep(1)
        seen = inspect(jobs, most=3)
        assert [each.started_at for each in seen.oldest] == [0, 1, 2]
        assert len(seen.hottest) == 3 and seen.hottest[0].key == "all"
        assert inspect(jobs, most=0).oldest == ()
        with pytest.raises(ValueError, match="most must be zero or more, got -1"):
            inspect(jobs, most=-1)


@on_virtual_time
@pytest.mark.parametrize("observer", [None, Listener()])
async def test_missed_triggers_are_shown_latest_first(observer):
    async with Purgatory(observer=observer) as jobs:
        for number in range(20):
            operation = Probe(number + 1)
            jobs.try_complete_else_watch(operation, [number] if number % 2 else [number, "all"])
            operation.ready = number > 0
        checked, forced = Probe(9), Probe(9)
        for operation in (checked, forced):
            jobs.try_complete_else_watch(operation, ["checked"])
        checked.ready = True
        assert jobs.check_and_complete("checked") and forced.force_complete()
        await asyncio.sleep(30)
        jobs.try_complete_else_watch(Probe(), ["endless"])
        [shown] = inspect(jobs).oldest  # without a timeout only an observer knows the start
        assert (shown.started_at, shown.deadline) == (observer and 30.0, None)
        missed = inspect(jobs).missed
    assert [each.keys for each in missed[:2]] == [(19,), (18, "all")]
    assert [each.deadline for each in missed] == [number + 1 for number in range(19, 3, -1)]
    assert all(
        each.timeout == each.deadline and each.kind == "Probe" and each.more_keys == 0
        for each in missed
    )


async def test_looking_does_not_bind():
    jobs = Purgatory()
    assert inspect(jobs).oldest == ()
    with pytest.raises(RuntimeError, match="no running event loop"):
        await asyncio.to_thread(inspect, jobs)

    async def use():
        assert jobs.try_complete_else_watch(Probe(ready=True), ["a"])

    await asyncio.to_thread(asyncio.run, use())


@pytest.mark.parametrize("kind", [Purgatory, ThresholdPurgatory])
async def test_looking_from_elsewhere_is_an_error(kind):
    async def look():
        inspect(jobs)

    async with kind("jobs") as jobs:
        wait = jobs.receive("a") if kind is Purgatory else jobs.wait("a", 1)
        waiting = asyncio.create_task(wait)
        await asyncio.sleep(0)
        with pytest.raises(WrongLoop, match="cannot inspect jobs"):
            await asyncio.to_thread(asyncio.run, look())
        waiting.cancel()


@on_virtual_time
async def test_large_purgatory_shows_sample_and_extremes():
    async with Purgatory() as jobs:
        old = Probe(500)
        jobs.try_complete_else_watch(old, ["old"])
        await asyncio.sleep(1)
        for number in range(50_000):
            keys = [number, "hot"] if number % 10 == 0 else [number]
            jobs.try_complete_else_watch(Probe(20 + number % 400), keys)
        for number in range(2_000):
            jobs.try_complete_else_watch(Probe(0.2 + number / 4_000), ["short"])
        seen = inspect(jobs)
        most = 3 * _inspect.MAX_FRONTS * _inspect.PER_BUCKET  # of each level
        most += _inspect.MAX_KEYS * _inspect.PER_KEY
        assert 50 < seen.looked_at <= most < 500
        assert seen.oldest[0].keys == ("old",)
        hottest = [(each.key, each.waiting) for each in seen.hottest[:2]]
        assert hottest == [("hot", 5_000), ("short", 2_000)]
        assert seen.without_deadline == 0


@on_virtual_time
async def test_large_dictionary_is_not_walked(monkeypatch):
    async with Purgatory() as jobs:
        for number in range(2_000):
            jobs.try_complete_else_watch(Probe(50), [number])
        monkeypatch.setattr(_inspect, "MAX_SCANNED_BYTES", 1_000)
        seen = inspect(jobs)
        assert 0 < seen.looked_at <= _inspect.PER_BUCKET * _inspect.MAX_FRONTS


@on_virtual_time
async def test_watchers_are_counted_during_a_check():
    seen = []
    async with Purgatory() as jobs:
        looking = [Probe(50, trying=lambda _: seen.append(inspect(jobs).hottest)) for _ in range(3)]
        watch_all(jobs, looking, ["hot"])
        seen.clear()
        jobs.check_and_complete("hot")
    assert seen[:3] == [(WatchedKey("hot", 3),)] * 3


@on_virtual_time
async def test_thresholds_show_waits_and_their_values():
    thresholds: ThresholdPurgatory[str, int] = ThresholdPurgatory("offsets")
    thresholds.advance("a", 3)
    waiting = [
        asyncio.create_task(thresholds.wait(key, value, 60))
        for key, value in [("a", 9), ("a", 5), ("b", 1)]
    ]
    await asyncio.sleep(1)
    thresholds.advance("nobody's", 1)
    seen = inspect(thresholds)
    assert [tuple(each) for each in seen.hottest] == [("a", 3, 5, 2), ("b", None, 1, 1)]
    assert (seen.statistics.pending, seen.looked_at, seen.is_closed) == (3, 3, False)
    assert [each[:3] for each in seen.oldest] == [("wait", (key,), 0) for key in ("a", "a", "b")]
    assert {(each.started_at, each.deadline) for each in seen.oldest} == {(0.0, 60.0)}
    assert len(inspect(thresholds, 1).hottest) == 1
    await thresholds.aclose()
    await asyncio.wait(waiting)
    assert all(isinstance(task.exception(), OperationCancelled) for task in waiting)
    assert inspect(thresholds)[1:3] == (True, ())


@on_virtual_time
async def test_many_threshold_keys_are_shown_in_part():
    thresholds: ThresholdPurgatory[int, int] = ThresholdPurgatory("offsets")
    for key in range(5_000):
        thresholds.advance(key, 1)
    seen = inspect(thresholds)
    assert (seen.looked_at, seen.statistics.keys) == (4096, 5_000)
