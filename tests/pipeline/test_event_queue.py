"""The event queue: events come out when they are due, slices are few, and adding events does not
read waiting ones."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.pipeline.streaming import _event_queue
from purgatory.pipeline.streaming._event_queue import (
    MIN_WIDTH,
    SLICES_PER_WIDTH,
    EventQueue,
    Events,
)
from purgatory.pipeline.streaming._events import REGISTRATIONS, SIGNALS

HOUR = 3600 * MIN_WIDTH
KINDS = st.sampled_from(["deadlines", "signals", "registrations"])


def put(event_queue: EventQueue, kind: str, instants: list[int], now: int) -> None:
    if kind == "deadlines":
        for at in instants:
            event_queue.add_deadline((at, f"d{at}"), now)
    elif kind == "signals":
        rows = [{"at": at, "key": f"s{at}", "value": 1} for at in instants]
        event_queue.add_signals(pa.RecordBatch.from_pylist(rows, schema=SIGNALS), now)
    else:
        rows = [{"at": at, "operation_id": f"r{at}"} for at in instants]
        event_queue.add_registrations(pa.RecordBatch.from_pylist(rows, schema=REGISTRATIONS), now)


def brief(events: Events) -> list[tuple[int, str]]:
    batches = (*events.signals, *events.registrations)
    return [
        *events.deadlines,
        *(
            (row["at"], row.get("key") or row["operation_id"])
            for batch in batches
            for row in batch.to_pylist()
        ),
    ]


@settings(deadline=None, max_examples=50)
@given(
    start=st.sampled_from([0, 1_700_000_000_000_000]),
    rounds=st.lists(
        st.tuples(
            st.lists(
                st.tuples(
                    st.sampled_from(["deadlines", "signals", "registrations"]),
                    st.lists(st.integers(0, 400 * HOUR)),
                )
            ),
            st.integers(0, 100 * HOUR),
            st.booleans(),
        ),
        max_size=8,
    ),
)
def test_each_event_comes_out_once_when_due(start, rounds) -> None:
    event_queue, now, waiting = EventQueue(chunks := {}), start, []
    for additions, step, saves in rounds:
        for kind, aheads in additions:
            put(event_queue, kind, [now + ahead for ahead in aheads], now)
            waiting += [(now + ahead, f"{kind[0]}{now + ahead}") for ahead in aheads]
        now += step
        if saves:
            event_queue.save()
            event_queue = EventQueue(chunks, event_queue.open_slices)
        taken = brief(event_queue.pop_due(now))
        assert sorted(taken) == sorted(each for each in waiting if each[0] <= now)
        waiting = [each for each in waiting if each[0] > now]
        if saves:
            event_queue.save()
            assert event_queue.next_at() == min((at for at, _ in waiting), default=None)
            assert sum(len(brief(chunk)) for chunk in chunks.values()) == len(waiting)

    event_queue.save()
    event_queue.pop_due(now + 1000 * HOUR)
    assert not chunks and not event_queue.open_slices


def test_chunk_holds_a_bounded_number_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_event_queue, "MAX_EVENTS_PER_CHUNK", 10)
    event_queue = EventQueue(chunks := {})
    for kind, count in (("deadlines", 25), ("signals", 31), ("signals", 4), ("registrations", 10)):
        put(event_queue, kind, list(range(1, count + 1)), 0)
    event_queue.save()

    assert [len(chunk.deadlines) for chunk in chunks.values()] == [10, 10, 5, 0]
    assert [[batch.num_rows for batch in chunk.signals] for chunk in chunks.values()] == [
        [10],
        [10],
        [10],
        [5],
    ]
    assert [[batch.num_rows for batch in chunk.registrations] for chunk in chunks.values()] == [
        [10],
        [],
        [],
        [],
    ]
    assert len(brief(event_queue.pop_due(HOUR))) == 70 and not chunks


def test_month_of_deadlines_takes_few_slices() -> None:
    event_queue = EventQueue({})
    for second in range(0, 30 * 24 * 3600, 7):
        event_queue.add_deadline((second * MIN_WIDTH, "a"), 0)
    event_queue.save()

    assert len(event_queue.open_slices) <= 4 * SLICES_PER_WIDTH


def test_adding_events_reads_none() -> None:
    class Unreadable(dict):
        def get(self, key, default=None):
            raise AssertionError(key)

    chunks = Unreadable()
    event_queue = EventQueue(chunks)
    for round_ in range(3):
        put(event_queue, "deadlines", [100 * MIN_WIDTH + round_], 0)
        put(event_queue, "signals", [100 * MIN_WIDTH + round_], 0)
        event_queue.save()

    assert brief(event_queue.pop_due(99 * MIN_WIDTH // 64)) == []
    assert len(chunks) == 3
