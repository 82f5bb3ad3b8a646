"""Relays keep their promises on real stores, while processes and stores are killed and paused; the
judge of their notes finds each fault."""

import asyncio

import pytest
from oracle_judge import Fault, Line, judge
from relay_oracle import ROLLBACKS, STORES, Options, examine

PROMISE = 2.0
LOSS = Fault("flushed", 2.0, 2.1, is_lossy=True, is_new_epoch=True)
PAUSE = Fault("paused", 3.0, 4.1, process="one")


def bump(begun: float, ended: float, version: int, key: str = "a") -> list[Line]:
    return [[begun, "bump", key], [ended, "bumped", key, version, begun]]


def wait(begun: float, ended: float, seen: int, version: int, seen_at: float = 0.0) -> list[Line]:
    return [[begun, "wait", "a", seen, seen_at], [ended, "answer", "a", version, begun]]


def delivery(begun: float, value: str, is_settled: bool, ended: float = 0.0) -> list[Line]:
    ended = ended or begun + 0.1
    line = [ended, "delivered", "r", value, 9, begun, is_settled]
    return [[begun, "deliver", "r", value, 9], line]


def receive(ended: float, value: str) -> list[Line]:
    return [[0.5, "receive", "r"], [ended, "received", "r", value, 0.5]]


ONE, FIRST = bump(1.0, 1.1, 1), delivery(1.0, "one", True)
ASKED = [2.1, "asked", "r", "two", 2.0]


@pytest.mark.parametrize(
    ("lines", "faults", "found"),
    [
        ([*ONE, *wait(0.0, 1.2, 0, 1), *bump(2.0, 2.1, 2), *wait(5.0, 5.1, 1, 2)], (), ""),
        ([*ONE, *wait(0.0, 3.2, 0, 1)], (), "missed"),
        ([*ONE, [0.0, "wait", "a", 0, 0.0]], (), "missed"),
        ([*ONE, [0.0, "wait", "a", 1, 0.0]], (), ""),
        ([*ONE, *wait(0.0, 6.0, 0, 1)], (PAUSE,), ""),
        ([*ONE, *wait(0.0, 6.0, 0, 1)], (Fault("paused", 2.0, 3.9),), "missed"),
        ([*ONE, *wait(0.0, 6.0, 0, 1)], (Fault("paused", 3.0, 4.1, process="x"),), "missed"),
        ([[0.0, "wait", "a", 7, 0.0]], (LOSS,), "missed"),
        (wait(0.0, 4.0, 7, 0), (LOSS,), ""),
        ([*ONE, *wait(3.0, 3.1, 1, 1, 2.9)], (), "early"),
        ([*ONE, *wait(3.0, 3.1, 1, 1, 2.9)], (Fault("x", 2.5, 2.6, is_new_epoch=True),), ""),
        ([*ONE, *wait(3.0, 3.1, 1, 1, 2.9)], (Fault("x", 0.2, 0.3, is_new_epoch=True),), "early"),
        ([*ONE, *wait(0.0, 1.2, 0, 2)], (), "invented"),
        ([*ONE, [1.15, "bump", "a"], *wait(0.0, 1.2, 0, 2)], (), ""),  # perhaps written
        ([*bump(1.0, 1.1, 9, "b"), *ONE, *wait(0.0, 1.2, 0, 9)], (), "invented"),
        ([*ONE, *bump(1.0, 1.2, 1)], (), "twice"),
        ([*bump(1.0, 1.1, 2), *bump(2.0, 2.1, 1)], (), "back"),
        ([*bump(1.0, 1.1, 2), *bump(3.0, 3.1, 1)], (LOSS,), ""),
        ([*bump(1.0, 1.1, 2), [1.3, "read", "a", 1, 1.2]], (), "back"),
        ([*bump(1.0, 1.1, 2), [1.3, "read", "a", 1, 1.05]], (), ""),
        ([*FIRST, *delivery(3.0, "two", False)], (), ""),
        ([*FIRST, *delivery(3.0, "two", True)], (), "settled_twice"),
        ([*FIRST, *delivery(3.0, "two", True)], (LOSS,), ""),
        ([*FIRST, *delivery(10.2, "two", True)], (), ""),
        ([*FIRST, *receive(3.0, "one")], (), ""),
        ([*FIRST, *receive(3.2, "one")], (), "unreceived"),
        ([*FIRST, *receive(3.2, "one")], (Fault("paused", 1.0, 1.3),), ""),
        ([*FIRST, [0.5, "receive", "r"]], (), "unreceived"),
        ([*FIRST, [2.1, "asked", "r", None, 2.0]], (), "unreceived"),
        ([*FIRST, [10.3, "asked", "r", "one", 10.25]], (), "overdue"),
        ([*FIRST, [10.3, "asked", "r", "one", 9.9]], (), ""),
        ([*delivery(1.2, "two", False), ASKED], (LOSS,), "invented"),
        ([*delivery(1.2, "two", False, 2.3), ASKED], (LOSS,), ""),  # made, lost, and made again
    ],
)
def test_judge_finds_the_fault(lines: list[Line], faults: tuple[Fault, ...], found: str) -> None:
    """In the notes of a process that has ended at 20."""
    verdict = judge([("one", lines, 20.0)], faults, PROMISE, forgets=False)
    assert verdict.wrong == bool(found) == verdict[found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "forget_after"), [("file", 0.0), *((kind, 0.5) for kind in STORES)]
)
def test_relays_keep_promises_through_kills_and_pauses(kind: str, forget_after: float) -> None:
    verdict, faults = asyncio.run(examine(kind, Options(10.0, forget_after=forget_after)))
    assert verdict.wrong == 0, verdict.examples
    assert min(verdict[kind] for kind in ("bumped", "answer", "read")) > 100
    assert min(verdict[kind] for kind in ("delivered", "received")) > 20
    assert len(faults) > 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROLLBACKS)
def test_promises_hold_while_store_is_rolled_back(kind: str) -> None:
    verdict, faults = asyncio.run(examine(kind, Options(15.0, rollbacks=True)))
    assert verdict.wrong == 0, verdict.examples
    assert min(verdict[kind] for kind in ("bumped", "answer", "delivered")) > 20
    assert {"rolled back", "rows deleted"} & {fault.name for fault in faults}
