"""Keys that are forgotten: equal to the definition in whatever order events come, and gone from the
state."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_decisions import (
    END,
    INSTANTS,
    KEYS,
    VALUES,
    brief,
    many_operations,
    operation,
    receive,
)

from purgatory.pipeline.streaming._decisions import Shard
from purgatory.pipeline.streaming._event_queue import EventQueue, Events
from purgatory.pipeline.streaming._events import COMPLETED, EXPIRED, Decision, Operation
from purgatory.pipeline.streaming._pending import StreamQueue
from purgatory.pipeline.streaming._state import dump_events, dump_queue, load_events, load_queue

SIGNALS = st.lists(st.tuples(KEYS, VALUES, INSTANTS), max_size=25)
SECOND = 1_000_000


class Stored(dict[str, StreamQueue]):
    """As in Spark's state: a key has the queue that was last set, and deleting an absent key is no
    error."""

    def __delitem__(self, key: str) -> None:
        self.pop(key, None)


class OneByOne(Shard):
    """Decides on each operation by itself, as on those with the id of another."""

    __slots__ = ()

    def _split_new(self, registrations: list[pa.RecordBatch]) -> tuple[None, Any]:
        return None, pa.concat_batches(registrations) if registrations else None


def forgetful(after: int | None) -> Shard:
    return Shard({}, Stored(), EventQueue({}), forget_after=after)


def value_at(
    signals: list[tuple[str, int, int]], key: str, instant: int, forget_after: int
) -> int | None:
    """The value of a key at an instant, signal by signal."""
    known, last_at = None, 0
    for at, value in sorted((at, value) for name, value, at in signals if name == key):
        if at > instant:
            break
        if known is None or at - last_at > forget_after:
            known = value
        known, last_at = max(known, value), at
    return known if known is not None and instant - last_at <= forget_after else None


def by_definition(
    operations: list[Operation], signals: list[tuple[str, int, int]], forget_after: int
) -> list[Decision]:
    """A requirement holds at the registration if the value that is not forgotten has reached it;
    otherwise from the first later signal that reaches it."""
    decisions = []
    for each in operations:
        reached = {}
        for key, threshold in each.requirements:
            value = value_at(signals, key, each.registered_at, forget_after)
            later = [
                at
                for name, reached_value, at in signals
                if name == key and at > each.registered_at and reached_value >= threshold
            ]
            is_known = value is not None and value >= threshold
            reached[key] = each.registered_at if is_known else min(later, default=END)
        instants = reached.values()
        holds_at = max(instants) if each.mode == "all" else min(instants)
        completed = holds_at <= each.deadline
        decided_at = holds_at if completed else each.deadline
        satisfied = [key for key, _ in each.requirements if reached[key] <= decided_at]
        outcome = COMPLETED if completed else EXPIRED
        decisions.append(Decision(outcome, each.operation_id, decided_at, satisfied))
    return decisions


def in_whatever_order(operations, signals, unit, forget_after, data) -> None:
    """Events come in any order that the watermark allows."""
    operations = [
        each._replace(registered_at=each.registered_at * unit, deadline=each.deadline * unit)
        for each in operations
    ]
    signals = [(key, value, at * unit) for key, value, at in signals]
    forget_after *= unit
    kind = data.draw(st.sampled_from([Shard, OneByOne]))
    shard = kind({}, Stored(), EventQueue({}), forget_after=forget_after)
    left, now, decided = data.draw(st.permutations([*operations, *signals])), 0, []
    while left:
        known = data.draw(st.integers(1, len(left)))
        batch, left = left[:known], left[known:]
        decided += receive(shard, *batch, now=now)
        times = [each[3] if isinstance(each, Operation) else each[2] for each in left]
        earliest = min(times, default=END) - 1
        now = max(now, data.draw(st.integers(now, max(now, min(earliest, 100 * unit)))))
        if data.draw(st.booleans()):
            decided += receive(shard, now=now)
            next_at = shard.event_queue.next_at()
            assert next_at is None or next_at > now
            assert {key for key, queue in shard.queues.items() if queue.last_at is not None} == {
                key for events in chunks(shard) for _, key in events.checks
            }
    decided += receive(shard, now=END)

    assert sorted(decided) == sorted(by_definition(operations, signals, forget_after))
    assert not shard.operations and not shard.queues
    assert shard.event_queue.next_at() is None


def chunks(shard: Shard) -> list[Events]:
    store: Any = shard.event_queue._chunks
    return list(store.values())


@settings(deadline=None, max_examples=80)
@given(many_operations(), SIGNALS, st.sampled_from([1, 700_000, 50 * SECOND]), INSTANTS, st.data())
def test_forgetting_decides_as_the_definition(
    operations, signals, unit, forget_after, data
) -> None:
    in_whatever_order(operations, signals, unit, forget_after, data)


@pytest.mark.slow
@settings(deadline=None, max_examples=1500)
@given(many_operations(), SIGNALS, st.sampled_from([1, 700_000, 50 * SECOND]), INSTANTS, st.data())
def test_forgetting_decides_as_the_definition_at_length(
    operations, signals, unit, forget_after, data
) -> None:
    in_whatever_order(operations, signals, unit, forget_after, data)


def test_value_counts_until_forgotten() -> None:
    shard = forgetful(60 * SECOND)
    receive(shard, ("x", 5, SECOND))
    receive(shard, now=SECOND)
    last, late = (
        operation(name, registered_at=at, deadline=100 * SECOND)
        for name, at in (("last", 61 * SECOND), ("late", 61 * SECOND + 1))
    )

    assert brief(receive(shard, last, late, now=SECOND)) == []
    assert brief(receive(shard, now=90 * SECOND)) == [(COMPLETED, "last", 61 * SECOND)]
    # A lower value than before: the key began anew.
    receive(shard, ("x", 1, 95 * SECOND), now=90 * SECOND)
    assert brief(receive(shard, now=96 * SECOND)) == [(COMPLETED, "late", 95 * SECOND)]


def test_key_with_waiters_stays_without_its_value() -> None:
    shard = forgetful(60 * SECOND)
    waiting = operation(requirements=(("x", 9),), registered_at=SECOND, deadline=500 * SECOND)
    receive(shard, waiting, ("x", 5, SECOND))
    receive(shard, now=200 * SECOND)
    assert shard.queues["x"].known is None and list(shard.queues["x"].waiters) == ["a"]

    receive(shard, ("x", 9, 300 * SECOND), now=200 * SECOND)
    assert brief(receive(shard, now=300 * SECOND)) == [(COMPLETED, "a", 300 * SECOND)]
    receive(shard, now=600 * SECOND)
    assert not shard.queues and shard.event_queue.next_at() is None


def test_keys_used_once_leave_the_state() -> None:
    shard, most = forgetful(60 * SECOND), 0
    for second in range(0, 1000, 10):
        now = second * SECOND
        receive(shard, *((f"paid-{second}-{n}", 1, now + n) for n in range(1, 20)), now=now)
        receive(shard, now=now + SECOND)
        most = max(most, len(shard.queues))

    assert most <= 19 * 8
    receive(shard, now=2000 * SECOND)
    assert not shard.queues and shard.event_queue.next_at() is None


def test_old_values_are_forgotten_after_their_next_use() -> None:
    queue = load_queue("x", (False, 5, ()))  # of a checkpoint without forgetting
    shard = forgetful(60 * SECOND)
    shard.queues["x"] = queue
    used = operation(registered_at=100 * SECOND, deadline=900 * SECOND)

    receive(shard, used)
    assert brief(receive(shard, now=150 * SECOND)) == [(COMPLETED, "a", 100 * SECOND)]
    receive(shard, now=200 * SECOND)
    assert not shard.queues


def test_values_stay_once_forgetting_is_switched_off() -> None:
    shard = forgetful(60 * SECOND)
    receive(shard, ("x", 5, SECOND))
    receive(shard, now=SECOND)
    again = Shard({}, shard.queues, shard.event_queue)
    receive(again, now=500 * SECOND)

    assert again.queues["x"].known == 5 and again.queues["x"].last_at is None
    assert again.event_queue.next_at() is None


def test_checks_and_last_signals_are_stored() -> None:
    events = load_events(dump_events(Events(checks=[(7, "x")])))
    assert (events.deadlines, events.checks) == ([], [(7, "x")])
    queue = StreamQueue("x")
    queue.value, queue.last_at = 5, 7
    assert load_queue("x", dump_queue(queue)).last_at == 7
