"""Decisions on streams: equal to the definition and to `ThresholdPurgatory`, for any order of the
events."""

from collections import Counter
from typing import Any

import pytest
from check_stream import by_thresholds
from hypothesis import given, settings
from hypothesis import strategies as st
from orders import Traffic
from shards import operations_batch, signals_batch

from purgatory.pipeline.streaming._decisions import Shard
from purgatory.pipeline.streaming._event_queue import EventQueue
from purgatory.pipeline.streaming._events import (
    COMPLETED,
    EXPIRED,
    LATE,
    Decision,
    Operation,
    requirements_of,
)

SECOND = 1_000_000
END = 10**18
LABEL = 6
"""The label of the shard."""


def new_shard() -> Shard:
    return Shard({}, {}, EventQueue({}))


def operation(
    operation_id="a", requirements=(("x", 1),), mode="all", registered_at=1, deadline=10
) -> Operation:
    return Operation(operation_id, requirements, mode, registered_at, deadline)


def receive(shard: Shard, *events: Any, now: int = 0) -> list[Decision]:
    """Gives `shard` operations and signals `(key, value, at)`, advances time to `now`, and
    saves."""
    operations = [each for each in events if isinstance(each, Operation)]
    if operations:
        shard.register(operations_batch(operations), now)
    if signals := [each for each in events if not isinstance(each, Operation)]:
        shard.signal(signals_batch([(*each, LABEL) for each in signals]), now, LABEL)
    shard.advance_to(now)
    shard.event_queue.save()
    return taken(shard)


def taken(shard: Shard) -> list[Decision]:
    return [Decision(**row) for batch in shard.take() for row in batch.to_pylist()]


def brief(decisions: list[Decision]) -> list[tuple[Any, ...]]:
    return [(each.outcome, each.operation_id, each.decided_at) for each in decisions]


def by_definition(
    operations: list[Operation], signals: list[tuple[str, int, int]]
) -> list[Decision]:
    """A requirement holds from the first signal at or before the deadline whose value reaches its
    threshold."""
    decisions = []
    for each in operations:
        reached = {
            key: min(
                (at for name, value, at in signals if name == key and value >= threshold),
                default=END,
            )
            for key, threshold in each.requirements
        }
        instants = reached.values()
        holds_at = max(each.registered_at, max(instants) if each.mode == "all" else min(instants))
        completed = holds_at <= each.deadline
        decided_at = holds_at if completed else each.deadline
        satisfied = [key for key, _ in each.requirements if reached[key] <= decided_at]
        decisions.append(
            Decision(COMPLETED if completed else EXPIRED, each.operation_id, decided_at, satisfied)
        )
    return decisions


KEYS = st.sampled_from("xyz")
VALUES = st.integers(0, 6)
INSTANTS = st.integers(1, 60)
SIGNALS = st.lists(st.tuples(KEYS, VALUES, INSTANTS), max_size=25)


@st.composite
def many_operations(draw: st.DrawFn) -> list[Operation]:
    made = []
    for number in range(draw(st.integers(0, 12))):
        registered_at = draw(INSTANTS)
        mode = draw(st.sampled_from(["all", "any"]))
        pairs = draw(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4))
        deadline = registered_at + draw(st.integers(0, 30))
        made.append(
            Operation(f"o{number}", requirements_of(pairs, mode), mode, registered_at, deadline)
        )
    return made


def in_whatever_order(operations, signals, unit, data) -> None:
    """Events come in any order that the watermark allows: each before the watermark comes to its
    instant."""
    operations = [
        each._replace(registered_at=each.registered_at * unit, deadline=each.deadline * unit)
        for each in operations
    ]
    signals = [(key, value, at * unit) for key, value, at in signals]
    shard, left, decided = new_shard(), data.draw(st.permutations([*operations, *signals])), []
    now = 0
    while left:
        known = data.draw(st.integers(1, len(left)))
        batch, left = left[:known], left[known:]
        decided += receive(shard, *batch, now=now)
        earliest = (
            min((each[3] if isinstance(each, Operation) else each[2] for each in left), default=END)
            - 1
        )
        now = max(now, data.draw(st.integers(now, max(now, min(earliest, 100 * unit)))))
        if due := data.draw(st.booleans()):
            decided += receive(shard, now=now)
        assert not due or shard.event_queue.next_at() is None or shard.event_queue.next_at() > now
    decided += receive(shard, now=END)

    assert sorted(decided) == sorted(by_definition(operations, signals))
    assert not shard.operations
    assert all(
        queue.value == max(v for k, v, _ in signals if k == key)
        for key, queue in shard.queues.items()
    )
    assert set(shard.queues) == {key for key, _, _ in signals}
    assert not any(queue.waiters or queue.size for queue in shard.queues.values())
    assert shard.event_queue.next_at() is None


in_any_order = given(
    many_operations(), SIGNALS, st.sampled_from([1, 700_000, 50 * SECOND]), st.data()
)


@settings(deadline=None, max_examples=60)
@in_any_order
def test_events_in_any_order_decide_as_the_definition(operations, signals, unit, data) -> None:
    in_whatever_order(operations, signals, unit, data)


@pytest.mark.slow
@settings(deadline=None, max_examples=600)
@in_any_order
def test_events_in_any_order_at_length(operations, signals, unit, data) -> None:
    in_whatever_order(operations, signals, unit, data)


@settings(deadline=None, max_examples=40)
@given(operations=many_operations(), signals=SIGNALS)
def test_outcomes_equal_those_of_a_threshold_purgatory(operations, signals) -> None:
    shard = new_shard()
    decided = receive(shard, *operations, *signals) + receive(shard, now=END)

    rows = sorted(
        (each.operation_id, each.outcome, each.decided_at, tuple(each.satisfied_keys))
        for each in decided
    )
    assert rows == by_thresholds(Traffic([each[:5] for each in operations], signals))


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_signal_at_the_very_deadline_still_counts(mode: str) -> None:
    shard = new_shard()
    receive(shard, operation(mode=mode, deadline=10), ("x", 1, 10))

    assert brief(receive(shard, now=10)) == [(COMPLETED, "a", 10)]


def test_a_signal_just_after_the_deadline_does_not() -> None:
    shard = new_shard()
    receive(shard, operation(deadline=10), ("x", 1, 11))

    assert brief(receive(shard, now=11)) == [(EXPIRED, "a", 10)]


def test_signal_before_the_registration_counts() -> None:
    shard = new_shard()
    receive(shard, ("x", 5, 2), now=1)
    receive(shard, now=2)

    assert brief(receive(shard, operation(requirements=(("x", 4),), registered_at=5), now=3)) == []
    assert brief(receive(shard, now=5)) == [(COMPLETED, "a", 5)]


def test_decisions_wait_for_the_watermark() -> None:
    shard = new_shard()
    receive(shard, operation(), ("x", 3, 8))

    assert receive(shard, now=7) == []
    assert brief(receive(shard, ("x", 1, 9), now=8)) == [(COMPLETED, "a", 8)]


def test_a_lower_value_takes_nothing_back() -> None:
    shard = new_shard()
    receive(shard, ("x", 5, 1), ("x", 2, 3), operation(requirements=(("x", 4),), registered_at=5))

    assert brief(receive(shard, now=9)) == [(COMPLETED, "a", 5)]
    assert shard.queues["x"].value == 5


def test_copy_of_pending_operation_is_late() -> None:
    shard = new_shard()
    receive(shard, operation(deadline=10), operation(registered_at=2, deadline=20))

    copy, outcome = receive(shard, now=30)

    assert (copy.outcome, copy.operation_id, copy.at) == (LATE, "a", 2) and "copy" in copy.reason
    assert brief([outcome]) == [(EXPIRED, "a", 10)]
    assert not shard.operations


def test_completed_operations_copy_is_late_until_deadline() -> None:
    shard = new_shard()
    receive(shard, operation(deadline=10), ("x", 1, 2))
    assert brief(receive(shard, now=3)) == [(COMPLETED, "a", 2)]

    assert [each.outcome for each in receive(shard, operation(deadline=10), now=4)] == [LATE]
    assert [each.outcome for each in receive(shard, operation(deadline=10), now=10)] == [LATE]
    assert shard.counts.registered == 3 and shard.counts.completed == 1 and shard.counts.late == 2
    assert not shard.operations


def test_id_is_free_after_its_deadline() -> None:
    shard = new_shard()
    receive(shard, operation(deadline=10), operation(registered_at=11, deadline=20), ("x", 1, 15))

    assert brief(receive(shard, now=30)) == [(EXPIRED, "a", 10), (COMPLETED, "a", 15)]


def test_late_operation_waits_from_the_watermark_on() -> None:
    shard = new_shard()
    receive(shard, ("x", 1, 3), now=0)
    receive(shard, now=5)

    assert brief(receive(shard, operation(registered_at=2, deadline=9), now=5)) == [
        (COMPLETED, "a", 5)
    ]


def test_late_signal_counts_from_the_watermark_on() -> None:
    shard = new_shard()
    receive(shard, operation(deadline=9), operation("b", deadline=4))
    assert brief(receive(shard, now=5)) == [(EXPIRED, "b", 4)]

    late, outcome = receive(shard, ("x", 1, 3), now=5)

    assert (late.outcome, late.key, late.at, late.operation_id) == (LATE, "x", 3, None)
    assert brief([outcome]) == [(COMPLETED, "a", 5)]
    assert shard.counts.late_signals == 1


def test_of_several_shards_one_reports_a_late_signal() -> None:
    shard = new_shard()
    shard.signal(signals_batch([("x", 1, 3, LABEL + 1)]), 5, LABEL)

    assert taken(shard) == [] and shard.counts.late_signals == 0


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (operation(deadline=5), "not after the watermark"),
        (operation(registered_at=9, deadline=8), "before its registration"),
        (operation(requirements=()), "requires nothing"),
        (operation(requirements=((None, 1),)), "lacks its key"),
        (operation(requirements=(("x", None),)), "lacks its key or its threshold"),
        (operation(mode="some"), "'some'"),
        (operation(mode=None), "None"),
        (operation(operation_id=None), "lacks an id"),
        (operation(registered_at=None), "instant of registration"),
        (operation(deadline=None), "deadline"),
    ],
)
def test_invalid_operation_is_late_with_its_reason(refused: Operation, reason: str) -> None:
    shard = new_shard()

    (decision,) = receive(shard, refused, now=5)

    assert decision.outcome == LATE and reason in decision.reason
    assert (shard.counts.registered, shard.counts.late) == (1, 1)
    assert not shard.operations and not shard.queues and shard.event_queue.next_at() is None


@pytest.mark.parametrize("signal", [(None, 1, 9), ("x", None, 9), ("x", 1, None)])
def test_a_signal_that_lacks_something_is_late(signal) -> None:
    shard = new_shard()

    (decision,) = receive(shard, signal, now=5)

    assert decision.outcome == LATE and "lacks" in decision.reason and decision.key == signal[0]
    assert receive(shard, now=END) == [] and not shard.queues


def test_key_required_twice_keeps_the_decisive_threshold() -> None:
    pairs = [("x", 3), ("y", 1), ("x", 5)]

    assert requirements_of(pairs, "all") == (("x", 5), ("y", 1))
    assert requirements_of(pairs, "any") == (("x", 3), ("y", 1))
    assert requirements_of([("x", None), ("x", 3)], "all") == (("x", None),)
    assert requirements_of(None, "all") == ()


def test_hot_key_wakes_only_reached_operations() -> None:
    shard = new_shard()
    receive(
        shard, *(operation(f"o{number}", (("x", number),), deadline=100) for number in range(1000))
    )
    receive(shard, now=1)
    reads = Counter()

    class Counting(dict[str, Any]):
        def get(self, key, default=None):
            reads[key] += 1
            return super().get(key, default)

    shard.operations = Counting(shard.operations)
    receive(shard, ("x", 9, 2), now=1)
    decisions = receive(shard, now=2)

    assert {each.operation_id for each in decisions} == {f"o{number}" for number in range(10)}
    assert set(reads) == {f"o{number}" for number in range(10)}
