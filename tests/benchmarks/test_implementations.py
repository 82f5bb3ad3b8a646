"""The implementations that the benchmarks compare: each gives the same answers as ours, or it would
not be a comparison."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from loops import on_virtual_time

from benchmarks.baselines.driver import drive
from benchmarks.baselines.implementations import (
    BY_NAME,
    EMPTY,
    IMPLEMENTATIONS,
    NEVER_MS,
    OURS,
    Implementation,
    Named,
    RunState,
)
from benchmarks.baselines.workload import LATENCIES, TIMEOUT_MS, Latency, Workload
from purgatory.testing import VirtualTimeLoop

pytestmark = pytest.mark.slow

each_implementation = pytest.mark.parametrize(
    "named", IMPLEMENTATIONS, ids=lambda named: named.name
)
others = pytest.mark.parametrize("named", IMPLEMENTATIONS[1:], ids=lambda named: named.name)


def run_virtually(main: Callable[[], Any]) -> Any:
    """For tests that compare the events on one loop with the events on another."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main())


class Recorder:
    """An implementation, and what became of each request that it was given."""

    def __init__(self, named: Named) -> None:
        self.loop = asyncio.get_running_loop()
        self.run_state = RunState()
        self.implementation: Implementation = named.make()
        self.ended: dict[object, tuple[str, float]] = {}

    def watch(
        self, name: object, keys: tuple[str, ...], timeout: float = 0.2, latency_ms: int = NEVER_MS
    ) -> Any:
        recorder, kind = self, self.implementation.new_request

        class Recorded(kind):  # type: ignore[misc,valid-type]
            __slots__ = ("__dict__",)

            def on_complete(self) -> None:
                super().on_complete()
                recorder.ended[name] = ("completed", recorder.loop.time())

            def on_expiration(self) -> None:
                super().on_expiration()
                recorder.ended[name] = ("expired", recorder.loop.time())

        request = Recorded(self.run_state, timeout, latency_ms)
        self.implementation.watch(request, keys)
        return request


def outcomes(named: Named, latency: Latency, seed: int) -> tuple[dict[int, str], dict[int, float]]:
    """Whether each of 600 requests was completed or expired, and how late those were, in
    milliseconds."""
    workload = Workload(600, 2000.0, latency, seed)

    async def main() -> Recorder:
        recorder = Recorder(named)
        loop, start = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        sets, latencies = workload.key_sets(), iter(workload.latencies_ms)
        due: dict[int, list[Any]] = {}
        number = 0
        for now_ms in range(len(workload.arrivals) + TIMEOUT_MS + 20):
            recorder.run_state.now_ms = now_ms
            for request in due.pop(now_ms, []):
                recorder.implementation.complete(request)
            for _ in range(workload.arrivals[now_ms] if now_ms < len(workload.arrivals) else 0):
                latency_ms = next(latencies)
                request = recorder.watch(number, next(sets), TIMEOUT_MS / 1000, latency_ms)
                if latency_ms < TIMEOUT_MS:
                    due.setdefault(now_ms + latency_ms, []).append(request)
                arrived[number] = loop.time()
                number += 1
            await asyncio.sleep(start + (now_ms + 1) / 1000 - loop.time())
        assert recorder.implementation.pending() == 0
        recorder.implementation.close()
        return recorder

    arrived: dict[int, float] = {}
    ended = run_virtually(main).ended
    late = {
        name: (at - arrived[name] - TIMEOUT_MS / 1000) * 1000
        for name, (outcome, at) in ended.items()
        if outcome == "expired"
    }
    return {name: outcome for name, (outcome, _) in ended.items()}, late


@pytest.mark.parametrize("latency", LATENCIES, ids=lambda latency: latency.name)
@others
def test_same_requests_complete_and_expire_as_in_ours(named: Named, latency: Latency) -> None:
    ours, _ = outcomes(OURS, latency, seed=3)
    theirs, _ = outcomes(named, latency, seed=3)

    assert len(ours) == 600 and set(ours.values()) == {"completed", "expired"}
    assert theirs == ours


@each_implementation
def test_request_expires_within_a_tick_and_never_early(named: Named) -> None:
    _, late = outcomes(named, LATENCIES[1], seed=4)

    assert len(late) > 200
    assert min(late.values()) >= -1e-3
    assert max(late.values()) <= 1.0 + 1e-6


@on_virtual_time
@each_implementation
@pytest.mark.parametrize("start", [0.0, 1e9])
async def test_request_expires_on_time_at_any_loop_time(named: Named, start: float) -> None:
    recorder = Recorder(named)
    await asyncio.sleep(0.0123)
    timeouts = (
        0.0005,
        0.2,
        0.75,
    )  # less than a tick, the benchmark's, and beyond two levels of Kafka's wheel
    requests = [recorder.watch(timeout, ("a", "b"), timeout) for timeout in timeouts]
    await asyncio.sleep(2.0)
    assert recorder.implementation.pending() == 0
    recorder.implementation.close()
    for timeout, request in zip(timeouts, requests, strict=True):
        outcome, at = recorder.ended[timeout]
        assert outcome == "expired"
        assert -1e-6 <= at - request.deadline <= 0.001 + 1e-6


@on_virtual_time
@each_implementation
async def test_check_completes_only_satisfied_requests_of_its_key(
    named: Named,
) -> None:
    recorder = Recorder(named)
    recorder.watch("ready", ("a", "b"), 1.0, latency_ms=5)
    recorder.watch("not yet", ("a", "c"), 1.0, latency_ms=50)
    recorder.watch("elsewhere", ("b", "c"), 1.0, latency_ms=5)
    await asyncio.sleep(0.005)
    recorder.run_state.now_ms = 5
    recorder.implementation.check_and_complete("a")
    recorder.implementation.check_and_complete("unwatched")
    await asyncio.sleep(0)
    assert {name: outcome for name, (outcome, _) in recorder.ended.items()} == {
        "ready": "completed"
    }
    recorder.run_state.now_ms = 50
    for key in ("b", "c"):
        recorder.implementation.check_and_complete(key)
    await asyncio.sleep(0.01)
    assert {name for name, (outcome, _) in recorder.ended.items() if outcome == "completed"} == {
        "ready",
        "not yet",
        "elsewhere",
    }
    assert recorder.implementation.pending() == 0 and recorder.run_state.answered == 3
    recorder.implementation.close()


@on_virtual_time
@each_implementation
async def test_satisfied_request_completes_at_once_and_only_once(
    named: Named,
) -> None:
    recorder = Recorder(named)
    at_once = recorder.watch("at once", ("a", "b", "c"), latency_ms=0)
    completed = recorder.watch("completed", ("a", "b", "c"))
    assert list(recorder.ended) == ["at once"]
    for request in (at_once, completed, completed):
        recorder.implementation.complete(request)
    await asyncio.sleep(1.0)
    assert {name: outcome for name, (outcome, _) in recorder.ended.items()} == {
        "at once": "completed",
        "completed": "completed",
    }
    assert (
        recorder.run_state.answered,
        len(recorder.run_state.lateness),
        recorder.implementation.pending(),
    ) == (2, 0, 0)
    recorder.implementation.close()


@on_virtual_time
async def test_kafkas_purges_lingering_requests_and_ours_has_none() -> None:
    counted = {}
    for name in ("ours", "kafka"):
        recorder = Recorder(BY_NAME[name])
        for round_ in range(30):
            requests = [recorder.watch((round_, number), (f"{number}",)) for number in range(100)]
            for request in requests:
                recorder.implementation.complete(request)
            await asyncio.sleep(0.02)
        counted[name] = recorder.implementation.counters()
        recorder.implementation.close()
    assert "purges" not in counted["ours"]
    assert counted["kafka"]["purges"] > 0


def test_generator_gets_answers_for_every_request() -> None:
    def driven(named: Named) -> Any:
        return run_virtually(
            lambda: drive(named.make, Workload(3000, 20_000.0, LATENCIES[0], seed=5))
        )

    ours, empty = driven(OURS), driven(EMPTY)
    never = Workload(3000, 20_000.0, LATENCIES[0], seed=5).never

    assert (ours.answered, len(ours.lateness_s)) == (3000, never) and 0 < never < 600
    assert (
        ours.created_s == pytest.approx(0.15, rel=0.1) and ours.cpu_s > 0 and ours.max_stall_s > 0
    )
    assert empty.answered <= 3000 - never  # requests that are due on arrival are not tried
    assert empty.answered >= 0.95 * (3000 - never) and empty.lateness_s == []


def test_workload_has_its_percentiles_rate_and_three_keys() -> None:
    for latency in LATENCIES:
        workload = Workload(100_000, 50_000.0, latency, seed=6)
        taken = sorted(workload.latencies_ms)
        half = taken[50_000]
        assert half == pytest.approx(20, rel=0.05) if latency.name == "low" else half >= 195
        assert workload.never / 100_000 == pytest.approx(
            0.079 if latency.name == "low" else 0.5, abs=0.01
        )
        assert sum(workload.arrivals) == 100_000 and len(workload.arrivals) == pytest.approx(
            2000, rel=0.02
        )
        sets = [keys for keys, _ in zip(workload.key_sets(), range(5000), strict=False)]
        assert (
            all(len(set(keys)) == 3 for keys in sets)
            and len({key for keys in sets for key in keys}) == 100
        )


def test_equal_seeds_alone_give_equal_workloads() -> None:
    first, same, other = (Workload(1000, 10_000.0, LATENCIES[0], seed) for seed in (1, 1, 2))

    assert (first.arrivals, first.latencies_ms) == (same.arrivals, same.latencies_ms)
    assert first.latencies_ms != other.latencies_ms
