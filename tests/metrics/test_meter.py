"""The meter: its counts equal those from an observer that keeps every event."""

import asyncio
import random
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from math import inf

import pytest
from helpers import Listener, Probe, live
from loops import on_virtual_time

from purgatory import Cause, OperationState, Purgatory
from purgatory.metrics import Histogram, Meter
from purgatory.metrics._counts import LATENESS_BOUNDS, WAIT_BOUNDS
from purgatory.metrics._durations import MAX_UNSORTED, Durations

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


@on_virtual_time
@pytest.mark.parametrize("seed", range(3))
async def test_it_counts_what_the_events_say(seed, reports):
    meter, keeper = Meter(), Listener()
    async with (
        Purgatory("orders", observer=[meter, keeper]) as orders,
        Purgatory("jobs", observer=[keeper, meter]) as jobs,
    ):
        await asyncio.gather(
            live(orders, random.Random(seed), 400), live(jobs, random.Random(-seed), 200)
        )
    kinds = meter.snapshot()
    assert [(kind.purgatory, kind.kind) for kind in kinds] == [
        (purgatory, kind) for purgatory in ("jobs", "orders") for kind in ("OtherProbe", "Probe")
    ]
    assert (
        sum(kind.missed_triggers for kind in kinds) > 0 < sum(kind.failed_tries for kind in kinds)
    )
    by_kind = defaultdict(list)
    for each in keeper.ended:
        by_kind[each.purgatory, each.kind].append(each)
    for kind in kinds:
        events = by_kind[kind.purgatory, kind.kind]
        assert kind.outcomes == Counter((each.state, each.cause) for each in events)
        assert kind.ended == len(events)
        assert kind.missed_triggers == sum(each.missed_trigger for each in events)
        assert kind.failed_tries == sum(each.failed_tries for each in events)
        for state in (COMPLETED, EXPIRED, CANCELLED):
            watched = [each for each in events if each.cause is not Cause.FIRST_TRY]
            of_state = [each for each in watched if each.state is state]
            assert_holds(kind.waits[state], [each.ended_at - each.started_at for each in of_state])
        due = [each for each in events if each.cause is Cause.DEADLINE]
        late = [max(each.ended_at - each.started_at - each.timeout, 0.0) for each in due]
        assert_holds(kind.lateness, late)
        assert 0 <= kind.lateness.sum / kind.lateness.count <= 0.001


def assert_holds(histogram: Histogram, durations: list[float]) -> None:
    expected = Counter(bisect_left(histogram.bounds, duration) for duration in durations)
    assert dict(enumerate(histogram.counts)) == {
        index: expected[index] for index in range(len(histogram.bounds))
    }
    assert histogram.count == len(durations)
    assert histogram.sum == pytest.approx(sum(durations))


def test_bounds_suit_usual_timeouts():
    assert WAIT_BOUNDS[0] == 0.001 and WAIT_BOUNDS[-2] > 120 and 0.001 in LATENESS_BOUNDS
    assert WAIT_BOUNDS[-1] == LATENESS_BOUNDS[-1] == inf
    assert list(WAIT_BOUNDS) == sorted(WAIT_BOUNDS)
    for timeout in (1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240):
        # An expiry that is a little late is in the bucket of its timeout.
        assert WAIT_BOUNDS[bisect_left(WAIT_BOUNDS, timeout)] > timeout * 1.02


@on_virtual_time
async def test_what_was_read_does_not_change():
    meter = Meter()
    assert meter.snapshot() == ()
    async with Purgatory("orders", observer=meter) as orders:
        orders.try_complete_else_watch(Probe(5), ["key"])
        assert meter.snapshot() == ()
        await asyncio.sleep(6)
        [before] = meter.snapshot()
        assert meter.snapshot() == (before,)
        orders.try_complete_else_watch(Probe(ready=True), ["key"])
        [after] = meter.snapshot()
    assert (before.ended, after.ended) == (1, 2)
    with pytest.raises(TypeError):
        before.outcomes[EXPIRED, Cause.DEADLINE] = 7
    assert repr(meter) == "<Meter purgatories=['orders']>"


def test_durations_are_counted_from_any_thread():
    durations, per_thread = Durations((0.5, 1.5, inf)), 20 * MAX_UNSORTED + 7
    threads = [
        threading.Thread(target=lambda: [durations.add(1.0) for _ in range(per_thread)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    seen = []
    while any(thread.is_alive() for thread in threads):
        seen.append(durations.histogram().count)
    assert seen == sorted(seen)
    assert durations.histogram() == Histogram(
        (0.5, 1.5, inf), (0, 4 * per_thread, 0), 4.0 * per_thread
    )


def test_quantile_is_an_upper_bound():
    durations = Durations((1.0, 2.0, inf))
    for duration in (0.0, 1.0, 1.5, 2.0, 2.5, 1e9):
        durations.add(duration)
    assert durations.histogram().counts == (2, 2, 2)  # a bound belongs to its bucket
    histogram = Histogram((1.0, 2.0, 4.0, inf), (5, 4, 0, 1), 20.0)
    expected = {0: 1.0, 0.5: 1.0, 0.51: 2.0, 0.9: 2.0, 0.91: inf, 1: inf}
    assert {share: histogram.quantile(share) for share in expected} == expected
    assert Histogram((1.0, inf), (0, 0), 0.0).quantile(0.5) is None
    with pytest.raises(ValueError, match="share must be between 0 and 1, got 99"):
        histogram.quantile(99)
