"""Decisions on streams: those of the model for any order of the events, and nothing is left over."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import (
    END,
    FOREVER,
    LABEL,
    Model,
    Operation,
    Signal,
    Stored,
    operations_batch,
    signals_batch,
)

from purgatory.pipeline.streaming import _rows, _state
from purgatory.pipeline.streaming._decisions import Shard

SECOND = 1_000_000


def operation(
    operation_id="a", requirements=(("x", 1),), mode="all", registered_at=1, deadline=10
) -> Operation:
    return Operation(operation_id, requirements, mode, registered_at, deadline)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((_rows, "MAX_ROWS"), (_state, "MAX_ROWS")):
        monkeypatch.setattr(module, name, 4)
    monkeypatch.setattr(_state, "MAX_ENTRIES_PER_PAGE", 2)
    monkeypatch.setattr(_state, "INITIAL_PAGES", 2)


KEYS = st.sampled_from("xyz")
VALUES = st.one_of(st.integers(0, 6), st.sampled_from([-(2**63), 2**63 - 1]))
INSTANTS = st.integers(1, 60)
PAIRS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4)
MODES = st.sampled_from(["all", "any"])
UNITS = st.sampled_from([1, 700_000, 50 * SECOND])
FORGETS = st.one_of(st.none(), INSTANTS)


def scaled(events: list[Any], unit: int) -> list[Any]:
    return [
        each._replace(
            **{
                name: getattr(each, name) * unit
                for name in ("registered_at", "deadline", "at")
                if getattr(each, name, None) is not None
            }
        )
        for each in events
    ]


anything = st.lists(
    st.one_of(
        st.builds(Signal, KEYS, VALUES, INSTANTS),
        st.builds(
            lambda name, pairs, mode, at, more: Operation(name, pairs, mode, at, at + more),
            st.sampled_from("abcdef"), PAIRS, MODES, INSTANTS, st.integers(0, 30),
        ),
        st.builds(  # one that lacks something, perhaps
            Operation, st.sampled_from(["a", None]), st.sampled_from([[("x", 1)], [("x", None)], [], None]),
            st.sampled_from(["all", "some", None]), st.one_of(st.none(), INSTANTS), st.one_of(st.none(), INSTANTS),
        ),
        st.sampled_from([Signal(None, 1, 9), Signal("x", None, 9), Signal("x", 1, None)]),
    ),
    max_size=30,
)  # fmt: skip


def as_the_model(events, unit, forget, at_once, data) -> None:
    """The events come in any order and however late; the watermark advances in between."""
    forget = None if forget is None else forget * unit
    events, now = scaled(events, unit), 0
    shard, model = Stored(forget, at_once), Model(forget or FOREVER, at_once)
    while now < END:
        size = data.draw(st.integers(0, len(events)))
        part, events = events[:size], events[size:]
        now, before = data.draw(st.integers(now, 100 * unit)) if events else END, now
        kinds = [[e for e in part if isinstance(e, kind)] for kind in (Operation, Signal)]
        before = min(before, 100 * unit)
        expected = model.step(*kinds, before, now)
        assert shard.step(*part, before=before, now=now) == expected
        assert shard.next_at is None or shard.next_at > now
        assert shard.rows("waiting") == len(model.waiting)
        assert shard.rows("operations") == len(model.received)
    assert [shard.rows(kind) for kind in ("signals", "operations", "waiting")] == [0, 0, 0]
    counts = shard.counts
    assert counts.registered == counts.completed + counts.expired + counts.late


@pytest.mark.parametrize("examples", [80, pytest.param(3000, marks=pytest.mark.slow)])
def test_any_events_decide_as_the_model(examples):
    history = given(anything, UNITS, FORGETS, st.booleans(), st.data())(as_the_model)
    settings(max_examples=examples)(history)()


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
        (Signal("x", 1, 3), "it counts from there on"),
        (Signal(None, 1, 9), "it lacks a key, a value or an instant"),
    ],
)
def test_late_row_has_its_reason(refused, reason):
    shard = Shard(defaultdict(dict).__getitem__)
    if isinstance(refused, Operation):
        shard.register(operations_batch([refused]), 5)
    else:
        shard.signal(signals_batch([refused]), 5, LABEL)

    (row,) = (row for batch in shard.take() for row in batch.to_pylist())

    assert row["outcome"] == "late" and reason in row["reason"]
    assert shard.counts.late + shard.counts.late_signals == 1


def test_of_several_shards_one_reports_a_late_signal():
    shard = Shard(defaultdict(dict).__getitem__)
    shard.signal(signals_batch([Signal("x", 1, 3)], reporter=LABEL + 1), 5, LABEL)

    assert shard.take() == [] and shard.counts.late_signals == 0


@pytest.mark.parametrize(("kind", "first"), [("waiting", 1), ("operations", 50)])
def test_unchanged_chunks_are_not_written_again(kind, first):
    shard = Stored()
    shard.step(
        *(operation(f"o{n}", ((f"k{n}", 1),), "all", first + n, 90) for n in range(40)), now=40
    )
    chunks = shard.stores[kind]
    kept = dict(chunks)
    shard.step(Signal("k7", 1, 41), now=41)

    assert len(kept) == 10
    assert sum(chunks.get(number) is kept[number] for number in kept) == 10 - (kind == "waiting")


@pytest.mark.parametrize("forget_after", [None, 60 * SECOND])
def test_keys_and_ids_leave_the_state(forget_after):
    shard, most = Stored(forget_after), defaultdict(int)
    for second in range(0, 1000, 10):
        now = second * SECOND
        shard.step(
            *(Signal(f"paid-{second}-{n}", 1, now + n) for n in range(1, 20)),
            *(operation(f"o{second}-{n}", (), "all", now + n) for n in range(20)),
            *(
                operation(
                    f"{second}-{n}", ((f"paid-{second}-{n}", 1),), "all", now + n, now + 60 * SECOND
                )
                for n in range(1, 20)
            ),
            now=now + SECOND,
        )
        for kind in ("ids", "values"):
            most[kind] = max(most[kind], shard.rows(kind))

    assert most["ids"] <= 19 * 30 and shard.counts.completed == 1900
    assert (most["values"] <= 19 * 30) == (forget_after is not None)
