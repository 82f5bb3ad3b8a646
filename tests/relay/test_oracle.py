"""The oracle finds what is wrong with notes, and nothing with those of relays on real stores."""

import asyncio

import pytest
from oracle_judge import Fault, Line, judge
from relay_oracle import STORES, Options, examine

PROMISE = 2.0


def verdict_on(*lines: Line, faults: tuple[Fault, ...] = (), forgets: bool = False) -> dict[str, int]:
    """What is wrong with the notes of one process that has ended at 20."""
    verdict = judge([("one", lines, 20.0)], faults, PROMISE, forgets)
    return {name: count for name in ("missed", "early", "invented", "back", "twice") if (count := getattr(verdict, name))}


def bump(begun: float, ended: float, version: int, key: str = "a") -> list[Line]:
    return [[begun, "bump", key], [ended, "bumped", key, version, begun]]


def wait(begun: float, ended: float, seen: int, version: int, seen_at: float = 0.0) -> list[Line]:
    return [[begun, "wait", "a", seen, seen_at], [ended, "answer", "a", version, begun]]


def test_what_is_answered_in_time_is_right() -> None:
    assert verdict_on(*bump(1.0, 1.1, 1), *wait(0.0, 1.2, 0, 1), *bump(2.0, 2.1, 2), *wait(5.0, 5.1, 1, 2)) == {}


def test_a_wait_that_is_answered_late_or_never_is_missed() -> None:
    assert verdict_on(*bump(1.0, 1.1, 1), *wait(0.0, 3.2, 0, 1)) == {"missed": 1}
    assert verdict_on(*bump(1.0, 1.1, 1), [0.0, "wait", "a", 0, 0.0]) == {"missed": 1}
    assert verdict_on(*bump(1.0, 1.1, 1), [0.0, "wait", "a", 1, 0.0]) == {}


def test_a_wait_may_outlive_its_version_by_as_long_as_a_fault_lasts() -> None:
    late = (*bump(1.0, 1.1, 1), *wait(0.0, 6.0, 0, 1))
    assert verdict_on(*late, faults=(Fault("paused", 3.0, 4.1),)) == {}
    assert verdict_on(*late, faults=(Fault("paused", 2.0, 3.9),)) == {"missed": 1}
    assert verdict_on(*late, faults=(Fault("paused", 3.0, 4.1, process="one"),)) == {}
    assert verdict_on(*late, faults=(Fault("paused", 3.0, 4.1, process="another"),)) == {"missed": 1}


def test_a_wait_that_was_open_when_the_store_lost_something_has_to_end() -> None:
    loss = Fault("flushed", 2.0, 2.1, is_lossy=True, is_new_epoch=True)
    assert verdict_on([0.0, "wait", "a", 7, 0.0], faults=(loss,)) == {"missed": 1}
    assert verdict_on(*wait(0.0, 4.0, 7, 0), faults=(loss,)) == {}


def test_a_wait_that_ends_with_what_it_had_seen_is_early_unless_there_was_a_new_epoch() -> None:
    early = (*bump(1.0, 1.1, 1), *wait(3.0, 3.1, 1, 1, seen_at=2.9))
    assert verdict_on(*early) == {"early": 1}
    assert verdict_on(*early, faults=(Fault("killed", 2.5, 2.6, is_new_epoch=True),)) == {}
    assert verdict_on(*early, faults=(Fault("killed", 0.2, 0.3, is_new_epoch=True),)) == {"early": 1}


def test_an_answer_that_nobody_has_written_is_invented() -> None:
    assert verdict_on(*bump(1.0, 1.1, 1), *wait(0.0, 1.2, 0, 2)) == {"invented": 1}
    assert verdict_on(*bump(1.0, 1.1, 1), [1.15, "bump", "a"], *wait(0.0, 1.2, 0, 2)) == {}  # it was perhaps written
    other_key = (*bump(1.0, 1.1, 9, "b"), *bump(1.0, 1.1, 1), *wait(0.0, 1.2, 0, 9))
    assert verdict_on(*other_key) == {"invented": 1}
    assert verdict_on(*other_key, forgets=True) == {}


def test_a_number_is_given_once_and_rises_within_an_era() -> None:
    loss = Fault("flushed", 1.5, 1.6, is_lossy=True)
    assert verdict_on(*bump(1.0, 1.1, 1), *bump(1.0, 1.2, 1)) == {"twice": 1}
    assert verdict_on(*bump(1.0, 1.1, 2), *bump(2.0, 2.1, 1)) == {"back": 1}
    assert verdict_on(*bump(1.0, 1.1, 2), *bump(2.0, 2.1, 1), *bump(2.2, 2.3, 2), faults=(loss,)) == {}
    assert verdict_on(*bump(1.0, 1.1, 2), *bump(1.0, 1.2, 1)) == {}  # neither was first


def test_a_read_finds_what_was_written_before_it_began() -> None:
    assert verdict_on(*bump(1.0, 1.1, 2), [1.3, "read", "a", 1, 1.2]) == {"back": 1}
    assert verdict_on(*bump(1.0, 1.1, 2), [1.3, "read", "a", 1, 1.05]) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "forget_after"), [("file", 0.0), *((kind, 0.5) for kind in STORES)])
def test_relays_keep_their_promises_while_processes_and_stores_are_killed_and_paused(kind: str, forget_after: float) -> None:
    options = Options(seconds=10.0, processes=3, keys=20, forget_after=forget_after, slack=20.0)
    verdict, faults = asyncio.run(examine(kind, options))
    assert verdict.wrong == 0, verdict.examples
    assert min(verdict.bumps, verdict.answers, verdict.reads) > 100
    assert len(faults) > 2
