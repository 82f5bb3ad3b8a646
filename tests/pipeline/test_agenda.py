"""The agenda: what is due comes when it is due, from few slices, and what is put off costs what waits nothing."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.pipeline.streaming import _agenda
from purgatory.pipeline.streaming._agenda import NARROWEST, REACH, Agenda, Events
from purgatory.pipeline.streaming._events import REGISTRATIONS, SIGNALS

HOUR = 3600 * NARROWEST
KINDS = st.sampled_from(["deadlines", "signals", "registrations"])


def put(agenda: Agenda, kind: str, instants: list[int], now: int) -> None:
    if kind == "deadlines":
        for at in instants:
            agenda.add((at, f"d{at}"), now)
    elif kind == "signals":
        rows = [{"at": at, "key": f"s{at}", "value": 1} for at in instants]
        agenda.add_signals(pa.RecordBatch.from_pylist(rows, schema=SIGNALS), now)
    else:
        rows = [{"at": at, "operation_id": f"r{at}"} for at in instants]
        agenda.add_registrations(pa.RecordBatch.from_pylist(rows, schema=REGISTRATIONS), now)


def brief(events: Events) -> list[tuple[int, str]]:
    batches = (*events.signals, *events.registrations)
    return [
        *events.deadlines,
        *((row["at"], row.get("key") or row["operation_id"]) for batch in batches for row in batch.to_pylist()),
    ]


@settings(deadline=None, max_examples=50)
@given(
    start=st.sampled_from([0, 1_700_000_000_000_000]),
    rounds=st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.sampled_from(["deadlines", "signals", "registrations"]), st.lists(st.integers(0, 400 * HOUR)))
            ),
            st.integers(0, 100 * HOUR),
            st.booleans(),
        ),
        max_size=8,
    ),
)
def test_everything_is_taken_once_in_the_round_in_which_it_is_due(start, rounds) -> None:
    agenda, now, waiting = Agenda(chunks := {}), start, []
    for additions, step, saves in rounds:
        for kind, aheads in additions:
            put(agenda, kind, [now + ahead for ahead in aheads], now)
            waiting += [(now + ahead, f"{kind[0]}{now + ahead}") for ahead in aheads]
        now += step
        if saves:
            agenda.save()
            agenda = Agenda(chunks, agenda.open_slices)
        taken = brief(agenda.take(now))
        assert sorted(taken) == sorted(each for each in waiting if each[0] <= now)
        waiting = [each for each in waiting if each[0] > now]
        if saves:
            agenda.save()
            assert agenda.next() == min((at for at, _ in waiting), default=None)
            assert sum(len(brief(chunk)) for chunk in chunks.values()) == len(waiting)

    agenda.save()
    agenda.take(now + 1000 * HOUR)
    assert not chunks and not agenda.open_slices


def test_a_chunk_holds_so_many_events_of_a_kind_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_agenda, "LONGEST_CHUNK", 10)
    agenda = Agenda(chunks := {})
    for kind, count in (("deadlines", 25), ("signals", 31), ("signals", 4), ("registrations", 10)):
        put(agenda, kind, list(range(1, count + 1)), 0)
    agenda.save()

    assert [len(chunk.deadlines) for chunk in chunks.values()] == [10, 10, 5, 0]
    assert [[batch.num_rows for batch in chunk.signals] for chunk in chunks.values()] == [[10], [10], [10], [5]]
    assert [[batch.num_rows for batch in chunk.registrations] for chunk in chunks.values()] == [[10], [], [], []]
    assert len(brief(agenda.take(HOUR))) == 70 and not chunks


def test_a_month_of_deadlines_lies_in_a_few_hundred_slices() -> None:
    agenda = Agenda({})
    for second in range(0, 30 * 24 * 3600, 7):
        agenda.add((second * NARROWEST, "a"), 0)
    agenda.save()

    assert len(agenda.open_slices) <= 4 * REACH


def test_putting_off_reads_nothing() -> None:
    class Unreadable(dict):
        def get(self, key, default=None):
            raise AssertionError(key)

    chunks = Unreadable()
    agenda = Agenda(chunks)
    for round_ in range(3):
        put(agenda, "deadlines", [100 * NARROWEST + round_], 0)
        put(agenda, "signals", [100 * NARROWEST + round_], 0)
        agenda.save()

    assert brief(agenda.take(99 * NARROWEST // 64)) == []
    assert len(chunks) == 3
