"""The designs that the benchmark compares: each gives the same answer as ours, or it would not be a comparison."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from loops import on_virtual_time

from benchmarks.baselines.driver import drive
from benchmarks.baselines.implementations import BY_NAME, DESIGNS, EMPTY, NEVER_MS, Design, Listed, World
from benchmarks.baselines.workload import LATENCIES, TIMEOUT_MS, Latency, Workload
from purgatory.testing import VirtualTimeLoop

each_design = pytest.mark.parametrize("listed", DESIGNS, ids=lambda listed: listed.name)
other_designs = pytest.mark.parametrize("listed", DESIGNS[1:], ids=lambda listed: listed.name)


def run_virtually(main: Callable[[], Any]) -> Any:
    """For tests that compare what happens on one loop with what happens on another."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main())


class Watching:
    """A design, and what became of each request that it was given."""

    def __init__(self, listed: Listed) -> None:
        self.loop = asyncio.get_running_loop()
        self.world = World()
        self.design: Design = listed.make()
        self.ended: dict[object, tuple[str, float]] = {}

    def watch(self, name: object, keys: tuple[str, ...], timeout: float = 0.2, latency_ms: int = NEVER_MS) -> Any:
        watching, kind = self, self.design.new_request

        class Told(kind):  # type: ignore[misc,valid-type]
            __slots__ = ("__dict__",)

            def on_complete(self) -> None:
                super().on_complete()
                watching.ended[name] = ("completed", watching.loop.time())

            def on_expiration(self) -> None:
                super().on_expiration()
                watching.ended[name] = ("expired", watching.loop.time())

        request = Told(self.world, timeout, latency_ms)
        self.design.watch(request, keys)
        return request


def outcomes(listed: Listed, latency: Latency, seed: int) -> tuple[dict[int, str], dict[int, float]]:
    """Whether each of 600 requests was completed or expired, and how late those were, in milliseconds."""
    workload = Workload(600, 2000.0, latency, seed)

    async def main() -> Watching:
        watching = Watching(listed)
        loop, start = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        sets, latencies = workload.key_sets(), iter(workload.latencies_ms)
        due: dict[int, list[Any]] = {}
        number = 0
        for now_ms in range(len(workload.arrivals) + TIMEOUT_MS + 20):
            watching.world.now_ms = now_ms
            for request in due.pop(now_ms, []):
                watching.design.complete(request)
            for _ in range(workload.arrivals[now_ms] if now_ms < len(workload.arrivals) else 0):
                latency_ms = next(latencies)
                request = watching.watch(number, next(sets), TIMEOUT_MS / 1000, latency_ms)
                if latency_ms < TIMEOUT_MS:
                    due.setdefault(now_ms + latency_ms, []).append(request)
                arrived[number] = loop.time()
                number += 1
            await asyncio.sleep(start + (now_ms + 1) / 1000 - loop.time())
        assert watching.design.pending() == 0
        watching.design.close()
        return watching

    arrived: dict[int, float] = {}
    ended = run_virtually(main).ended
    late = {
        name: (at - arrived[name] - TIMEOUT_MS / 1000) * 1000 for name, (outcome, at) in ended.items() if outcome == "expired"
    }
    return {name: outcome for name, (outcome, _) in ended.items()}, late


@pytest.mark.parametrize("latency", LATENCIES, ids=lambda latency: latency.name)
@other_designs
def test_the_same_requests_are_completed_and_expire_as_in_ours(listed: Listed, latency: Latency) -> None:
    ours, _ = outcomes(DESIGNS[0], latency, seed=3)
    theirs, _ = outcomes(listed, latency, seed=3)

    assert len(ours) == 600 and set(ours.values()) == {"completed", "expired"}
    assert theirs == ours


@each_design
def test_no_request_expires_early_nor_later_than_the_design_allows(listed: Listed) -> None:
    _, late = outcomes(listed, LATENCIES[1], seed=4)

    assert len(late) > 200
    assert min(late.values()) >= -1e-3
    assert max(late.values()) <= listed.late_ms + 1e-6


@on_virtual_time
@each_design
@pytest.mark.parametrize("start", [0.0, 2e7, 1e9])
@pytest.mark.parametrize("timeout", [0.0005, 0.001, 0.0634, 0.2, 0.511, 0.512, 0.75])
async def test_a_request_expires_on_time_at_any_loop_time(listed: Listed, start: float, timeout: float) -> None:
    watching = Watching(listed)
    await asyncio.sleep(0.0123)
    request = watching.watch("it", ("a", "b"), timeout)
    await asyncio.sleep(2.0)
    assert watching.design.pending() == 0
    watching.design.close()
    outcome, at = watching.ended["it"]
    assert outcome == "expired"
    late_ms = 8 if listed.late_ms < 8 or timeout < 0.5 else 64
    assert -1e-6 <= at - request.deadline <= (late_ms if listed.name == "linux" else listed.late_ms) / 1000 + 1e-6


@on_virtual_time
@each_design
async def test_a_check_completes_whose_condition_holds_under_its_key_and_nobody_else(listed: Listed) -> None:
    watching = Watching(listed)
    watching.watch("ready", ("a", "b"), 1.0, latency_ms=5)
    watching.watch("not yet", ("a", "c"), 1.0, latency_ms=50)
    watching.watch("elsewhere", ("b", "c"), 1.0, latency_ms=5)
    await asyncio.sleep(0.005)
    watching.world.now_ms = 5
    watching.design.check_and_complete("a")
    watching.design.check_and_complete("nobody's")
    await asyncio.sleep(0)
    assert {name: outcome for name, (outcome, _) in watching.ended.items()} == {"ready": "completed"}
    watching.world.now_ms = 50
    for key in ("b", "c"):
        watching.design.check_and_complete(key)
    await asyncio.sleep(0.01)
    assert {name for name, (outcome, _) in watching.ended.items() if outcome == "completed"} == {
        "ready",
        "not yet",
        "elsewhere",
    }
    assert watching.design.pending() == 0 and watching.world.answered == 3
    watching.design.close()


@on_virtual_time
@each_design
async def test_a_request_whose_condition_holds_is_completed_at_once_and_each_is_answered_once(listed: Listed) -> None:
    watching = Watching(listed)
    at_once = watching.watch("at once", ("a", "b", "c"), latency_ms=0)
    completed = watching.watch("completed", ("a", "b", "c"))
    assert list(watching.ended) == ["at once"]
    for request in (at_once, completed, completed):
        watching.design.complete(request)
    await asyncio.sleep(1.0)
    assert {name: outcome for name, (outcome, _) in watching.ended.items()} == {
        "at once": "completed",
        "completed": "completed",
    }
    assert (watching.world.answered, len(watching.world.lateness), watching.design.pending()) == (2, 0, 0)
    watching.design.close()


@on_virtual_time
async def test_kafkas_designs_purge_what_lingers_and_ours_has_nothing_to_purge() -> None:
    counted = {}
    for name in ("ours", "old", "kafka"):
        watching = Watching(BY_NAME[name])
        for round_ in range(30):
            requests = [watching.watch((round_, number), (f"{number}",)) for number in range(100)]
            for request in requests:
                watching.design.complete(request)
            await asyncio.sleep(0.02)
        counted[name] = watching.design.counters()
        watching.design.close()
    assert "purges" not in counted["ours"]
    assert counted["old"]["purges"] > 0 and counted["kafka"]["purges"] > 0


def test_the_generator_gets_every_request_answered_and_the_empty_purgatory_the_same_ones() -> None:
    def driven(listed: Listed) -> Any:
        return run_virtually(lambda: drive(listed.make, Workload(3000, 20_000.0, LATENCIES[0], seed=5)))

    ours, empty = driven(DESIGNS[0]), driven(EMPTY)
    never = Workload(3000, 20_000.0, LATENCIES[0], seed=5).never

    assert (ours.answered, len(ours.lateness_s)) == (3000, never) and 0 < never < 600
    assert ours.created_s == pytest.approx(0.15, rel=0.1) and ours.cpu_s > 0 and ours.hold_s > 0
    assert empty.answered <= 3000 - never  # nobody tries those whose time has come when they arrive
    assert empty.answered >= 0.95 * (3000 - never) and empty.lateness_s == []


def test_a_workload_has_the_percentiles_of_the_seeds_the_rate_and_three_keys_each() -> None:
    for latency in LATENCIES:
        workload = Workload(100_000, 50_000.0, latency, seed=6)
        taken = sorted(workload.latencies_ms)
        half = taken[50_000]
        assert half == pytest.approx(20, rel=0.05) if latency.name == "low" else half >= 195
        assert workload.never / 100_000 == pytest.approx(0.079 if latency.name == "low" else 0.5, abs=0.01)
        assert sum(workload.arrivals) == 100_000 and len(workload.arrivals) == pytest.approx(2000, rel=0.02)
        sets = [keys for keys, _ in zip(workload.key_sets(), range(5000), strict=False)]
        assert all(len(set(keys)) == 3 for keys in sets) and len({key for keys in sets for key in keys}) == 100


def test_the_same_seed_gives_the_same_workload_and_another_one_another() -> None:
    first, same, other = (Workload(1000, 10_000.0, LATENCIES[0], seed) for seed in (1, 1, 2))

    assert (first.arrivals, first.latencies_ms) == (same.arrivals, same.latencies_ms)
    assert first.latencies_ms != other.latencies_ms
