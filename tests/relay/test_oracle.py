"""The oracle finds the faults in notes, and none in the notes of relays on real stores."""

import asyncio

import pytest
from oracle_judge import Fault, Line, Times, Verdict, judge
from oracle_replies import judge_replies
from relay_oracle import ROLLBACKS, STORES, Options, examine

PROMISE = 2.0


def verdict_on(
    *lines: Line, faults: tuple[Fault, ...] = (), forgets: bool = False
) -> dict[str, int]:
    """The faults in the notes of one process that has ended at 20."""
    verdict = judge([("one", lines, 20.0)], faults, PROMISE, forgets)
    return {
        name: count
        for name in ("missed", "early", "invented", "back", "twice")
        if (count := getattr(verdict, name))
    }


def bump(begun: float, ended: float, version: int, key: str = "a") -> list[Line]:
    return [[begun, "bump", key], [ended, "bumped", key, version, begun]]


def wait(begun: float, ended: float, seen: int, version: int, seen_at: float = 0.0) -> list[Line]:
    return [[begun, "wait", "a", seen, seen_at], [ended, "answer", "a", version, begun]]


def test_what_is_answered_in_time_is_right() -> None:
    assert (
        verdict_on(
            *bump(1.0, 1.1, 1), *wait(0.0, 1.2, 0, 1), *bump(2.0, 2.1, 2), *wait(5.0, 5.1, 1, 2)
        )
        == {}
    )


def test_wait_answered_late_or_never_is_missed() -> None:
    assert verdict_on(*bump(1.0, 1.1, 1), *wait(0.0, 3.2, 0, 1)) == {"missed": 1}
    assert verdict_on(*bump(1.0, 1.1, 1), [0.0, "wait", "a", 0, 0.0]) == {"missed": 1}
    assert verdict_on(*bump(1.0, 1.1, 1), [0.0, "wait", "a", 1, 0.0]) == {}


def test_wait_may_outlive_its_version_during_a_fault() -> None:
    late = (*bump(1.0, 1.1, 1), *wait(0.0, 6.0, 0, 1))
    assert verdict_on(*late, faults=(Fault("paused", 3.0, 4.1),)) == {}
    assert verdict_on(*late, faults=(Fault("paused", 2.0, 3.9),)) == {"missed": 1}
    assert verdict_on(*late, faults=(Fault("paused", 3.0, 4.1, process="one"),)) == {}
    assert verdict_on(*late, faults=(Fault("paused", 3.0, 4.1, process="another"),)) == {
        "missed": 1
    }


def test_open_wait_must_end_after_store_loss() -> None:
    loss = Fault("flushed", 2.0, 2.1, is_lossy=True, is_new_epoch=True)
    assert verdict_on([0.0, "wait", "a", 7, 0.0], faults=(loss,)) == {"missed": 1}
    assert verdict_on(*wait(0.0, 4.0, 7, 0), faults=(loss,)) == {}


def test_wait_ending_with_seen_needs_new_epoch() -> None:
    early = (*bump(1.0, 1.1, 1), *wait(3.0, 3.1, 1, 1, seen_at=2.9))
    assert verdict_on(*early) == {"early": 1}
    assert verdict_on(*early, faults=(Fault("killed", 2.5, 2.6, is_new_epoch=True),)) == {}
    assert verdict_on(*early, faults=(Fault("killed", 0.2, 0.3, is_new_epoch=True),)) == {
        "early": 1
    }


def test_an_answer_that_nobody_has_written_is_invented() -> None:
    assert verdict_on(*bump(1.0, 1.1, 1), *wait(0.0, 1.2, 0, 2)) == {"invented": 1}
    assert (
        verdict_on(*bump(1.0, 1.1, 1), [1.15, "bump", "a"], *wait(0.0, 1.2, 0, 2)) == {}
    )  # it was perhaps written
    other_key = (*bump(1.0, 1.1, 9, "b"), *bump(1.0, 1.1, 1), *wait(0.0, 1.2, 0, 9))
    assert verdict_on(*other_key) == {"invented": 1}
    assert verdict_on(*other_key, forgets=True) == {}


def test_number_is_unique_and_rises_within_era() -> None:
    loss = Fault("flushed", 1.5, 1.6, is_lossy=True)
    assert verdict_on(*bump(1.0, 1.1, 1), *bump(1.0, 1.2, 1)) == {"twice": 1}
    assert verdict_on(*bump(1.0, 1.1, 2), *bump(2.0, 2.1, 1)) == {"back": 1}
    assert (
        verdict_on(*bump(1.0, 1.1, 2), *bump(2.0, 2.1, 1), *bump(2.2, 2.3, 2), faults=(loss,)) == {}
    )
    assert verdict_on(*bump(1.0, 1.1, 2), *bump(1.0, 1.2, 1)) == {}  # neither was first


def test_read_finds_writes_from_before_it_began() -> None:
    assert verdict_on(*bump(1.0, 1.1, 2), [1.3, "read", "a", 1, 1.2]) == {"back": 1}
    assert verdict_on(*bump(1.0, 1.1, 2), [1.3, "read", "a", 1, 1.05]) == {}


def verdict_on_replies(*lines: Line, faults: tuple[Fault, ...] = ()) -> dict[str, int]:
    """The faults in the notes of one process that has ended at 20."""
    verdict = Verdict()
    judge_replies(verdict, [("one", lines, 20.0)], Times(faults, PROMISE))
    names = ("settled_twice", "unreceived", "overdue", "invented")
    return {name: count for name in names if (count := getattr(verdict, name))}


def delivery(
    begun: float, ended: float, value: str, is_settled: bool, ttl: float = 9
) -> list[Line]:
    line = [ended, "delivered", "r", value, ttl, begun, is_settled]
    return [[begun, "deliver", "r", value, ttl], line]


LOSS = Fault("flushed", 2.0, 2.1, is_lossy=True)


def test_key_is_settled_once_until_its_ttl() -> None:
    one = delivery(1.0, 1.1, "one", True)
    assert verdict_on_replies(*one, *delivery(3.0, 3.1, "two", False)) == {}
    assert verdict_on_replies(*one, *delivery(3.0, 3.1, "two", True)) == {"settled_twice": 1}
    assert verdict_on_replies(*one, *delivery(3.0, 3.1, "two", True), faults=(LOSS,)) == {}
    assert verdict_on_replies(*one, *delivery(10.2, 10.3, "two", True)) == {}


def test_reply_that_is_there_is_received_in_time() -> None:
    one = delivery(1.0, 1.1, "one", True)
    received = [[0.5, "receive", "r"], [3.0, "received", "r", "one", 0.5]]
    late = [[0.5, "receive", "r"], [3.2, "received", "r", "one", 0.5]]
    assert verdict_on_replies(*one, *received) == {}
    assert verdict_on_replies(*one, *late) == {"unreceived": 1}
    assert verdict_on_replies(*one, [0.5, "receive", "r"]) == {"unreceived": 1}
    assert verdict_on_replies(*one, [0.5, "receive", "r"], faults=(LOSS,)) == {}
    assert verdict_on_replies(*one, *late, faults=(Fault("paused", 1.0, 1.3),)) == {}
    assert verdict_on_replies(*one, [2.1, "asked", "r", None, 2.0]) == {"unreceived": 1}


def test_reply_is_received_neither_changed_nor_too_late() -> None:
    one = delivery(1.0, 1.1, "one", True)
    assert verdict_on_replies(*one, [10.3, "asked", "r", "one", 10.25]) == {"overdue": 1}
    assert verdict_on_replies(*one, [10.3, "asked", "r", "one", 9.9]) == {}
    assert verdict_on_replies(*one, [2.1, "asked", "r", "two", 2.0]) == {"invented": 2}
    refused = delivery(1.2, 1.3, "two", False)
    asked = [2.1, "asked", "r", "two", 2.0]
    assert verdict_on_replies(*refused, asked) == {"invented": 1}
    assert verdict_on_replies(*refused, asked, faults=(LOSS,)) == {"invented": 1}
    # Made, lost with the store, and made again after another one.
    refused_late = delivery(1.2, 2.3, "two", False)
    assert verdict_on_replies(*refused_late, asked, faults=(LOSS,)) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "forget_after"), [("file", 0.0), *((kind, 0.5) for kind in STORES)]
)
def test_relays_keep_promises_through_kills_and_pauses(kind: str, forget_after: float) -> None:
    options = Options(seconds=10.0, processes=3, keys=20, forget_after=forget_after, slack=20.0)
    verdict, faults = asyncio.run(examine(kind, options))
    assert verdict.wrong == 0, verdict.examples
    assert min(verdict.bumps, verdict.answers, verdict.reads) > 100
    assert min(verdict.deliveries, verdict.replies) > 20
    assert len(faults) > 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROLLBACKS)
def test_promises_hold_while_store_is_rolled_back(kind: str) -> None:
    options = Options(seconds=15.0, processes=3, keys=20, slack=20.0, rollbacks=True)
    verdict, faults = asyncio.run(examine(kind, options))
    assert verdict.wrong == 0, verdict.examples
    assert min(verdict.bumps, verdict.answers, verdict.deliveries) > 20
    assert {"rolled back", "rows deleted"} & {fault.name for fault in faults}
