"""The replay: it has the outcomes of the recorded run, by the same wheel, and reports
differences."""

import asyncio
import random

import pytest

from purgatory import DelayedOperation, Purgatory
from purgatory.pipeline.simulate._replay import Recorded, Replayed, Setting, replay
from purgatory.testing import VirtualTimeLoop

OWN = Setting(0.001, 512, None)


def recorded(
    number=0,
    keys=("x",),
    started=0.0,
    ended=1.0,
    timeout=5.0,
    outcome="completed",
    ended_by="x",
    missed=False,
):
    return Recorded(
        number,
        list(keys),
        round(started * 1e6),
        round(ended * 1e6),
        timeout,
        outcome,
        ended_by,
        missed,
    )


def live(operations: int, seed: int) -> list[Recorded]:
    """The record of a purgatory on virtual time with random operations."""
    chance, rows = random.Random(seed), []

    class Flag(DelayedOperation[None]):
        is_set = False

        def try_complete(self) -> bool:
            return self.is_set and self.force_complete()

    async def one(number: int, purgatory: Purgatory[Flag]) -> None:
        loop = asyncio.get_running_loop()
        keys = [f"k{key}" for key in chance.sample(range(5), chance.randint(1, 3))]
        start, timeout, end = (
            chance.randrange(0, 9_000_000) / 1e6,
            chance.choice((0.25, 1.0, 3.0)),
            chance.expovariate(1),
        )
        fate = chance.choice(("check", "check", "force", "cancel", "forget"))
        await asyncio.sleep(start)
        operation, key, began = Flag(timeout), chance.choice(keys), loop.time()
        purgatory.try_complete_else_watch(operation, keys)
        await asyncio.sleep(min(end, timeout + 0.1))
        missed, ended_by = False, None
        if not operation.is_completed:
            operation.is_set = fate in ("check", "forget")
            if fate == "check":
                ended_by = key
                purgatory.check_and_complete(key)
            elif fate == "force":
                operation.force_complete()
            elif fate == "cancel":
                operation.cancel()
            else:
                missed = True
        ended = loop.time()
        if missed:
            await operation
            ended = loop.time()
        ended_at = began + timeout if operation.state.value == "expired" else ended
        rows.append(
            recorded(
                number, keys, began, ended_at, timeout, operation.state.value, ended_by, missed
            )
        )

    async def main() -> None:
        async with Purgatory[Flag]() as purgatory:
            await asyncio.gather(*(one(number, purgatory) for number in range(operations)))

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
    return sorted(rows, key=lambda row: row.started_at)


@pytest.mark.parametrize("seed", range(3))
def test_replay_with_recorded_settings_ends_as_recorded(seed: int) -> None:
    rows = live(400, seed)
    assert {row.outcome for row in rows} == {"completed", "expired", "cancelled"} and any(
        row.missed_trigger for row in rows
    )

    seen = replay(iter(rows), OWN)

    assert (seen.operations, seen.different, seen.differences) == (400, 0, [])
    assert seen.expired == sum(row.outcome == "expired" for row in rows)
    assert 0.0 <= seen.late_max <= 0.001 and seen.lateness.total() == seen.expired


@pytest.mark.parametrize("setting", [Setting(0.01, 20, None), Setting(0.25, 4, None)])
def test_tick_and_wheel_size_change_no_outcome(
    setting: Setting,
) -> None:
    rows = live(400, 9)

    fine, coarse = replay(iter(rows), OWN), replay(iter(rows), setting)

    assert coarse.different == 0 and coarse.expired == fine.expired
    assert coarse.callbacks < fine.callbacks and coarse.largest_burst >= fine.largest_burst
    assert fine.late_max < coarse.late_max <= setting.tick


def test_shorter_timeout_expires_more_and_longer_restores_none() -> None:
    rows = [
        recorded(0, ended=0.02),
        recorded(1, started=0.1, ended=0.9),
        recorded(2, started=0.2, ended=5.2, outcome="expired", ended_by=None),
    ]

    short, long = (
        replay(iter(rows), Setting(0.01, 20, 0.1)),
        replay(iter(rows), Setting(0.01, 20, 60.0)),
    )

    assert (short.expired, long.expired) == (2, 1)
    assert short.differences == [(1, "completed", "expired", "the timeout of 0.1 s came first")]
    assert long.different == 0


def test_completion_after_deadline_is_reported_as_different() -> None:
    seen = replay(iter([recorded(7, ended=5.3)]), OWN)

    ((number, was, became, why),) = seen.differences
    assert (number, was, became, seen.different) == (7, "completed", "expired", 1)
    assert "0.300000 s after its deadline" in why


def test_expiries_of_one_tick_are_a_burst() -> None:
    together = [
        recorded(number, ended=2.0, timeout=2.0, outcome="expired", ended_by=None)
        for number in range(30)
    ]
    gone = [recorded(99, started=0.0, ended=0.5, timeout=1.0)]

    seen = replay(iter(together + gone), Setting(0.01, 512, None))

    assert (seen.largest_burst, seen.largest_bucket, seen.expired) == (30, 30, 30)
    assert (seen.callbacks, seen.empty_callbacks) == (2, 1)


def test_replay_skips_waiters_of_a_shared_key(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def count(self: Replayed) -> bool:
        tries.append(self.recorded.operation_id)
        return before(self)

    before = Replayed.try_complete
    monkeypatch.setattr(Replayed, "try_complete", count)

    seen = replay(iter([recorded(number, ended=1 + number / 1e3) for number in range(500)]), OWN)

    assert (seen.operations, seen.different, len(tries)) == (500, 0, 500)


def test_missed_trigger_completes_at_keys_later_check() -> None:
    rows = [
        recorded(0, ended=1.0, timeout=1.0, ended_by=None, missed=True),
        recorded(1, ended=3.0),
        recorded(2, keys=["y"], started=0.0, ended=1.0, timeout=1.0, ended_by=None, missed=True),
    ]

    seen = replay(iter(rows), Setting(0.001, 512, 5.0))

    assert (seen.different, seen.empty_callbacks + seen.expired) == (0, 0)
    assert seen.largest_bucket == 1  # at the deadline only the operation on "y" was left
