"""Journals that Hypothesis makes: of few runs, keys and instants, so that much happens at once."""

from datetime import timedelta

from hypothesis import strategies as st
from journals import START, Row, operation


@st.composite
def operations(draw: st.DrawFn) -> list[Row]:
    """Valid operations, each with another id."""
    rows = []
    for number in range(draw(st.integers(1, 40))):
        begin, wait = draw(st.integers(0, 30)), draw(st.sampled_from([0, 1, 2, 5, 1000]))
        grain = draw(st.sampled_from([100_000, 1]))
        outcome = draw(st.sampled_from(["completed", "completed", "expired", "cancelled", None]))
        has_start = outcome is None or draw(st.integers(0, 9)) > 0
        started = START + timedelta(microseconds=begin * grain)
        rows.append(
            operation(
                number,
                run_id=draw(st.sampled_from(["one", "two"])),
                purgatory=draw(st.sampled_from(["letters", "parcels"])),
                kind=draw(st.sampled_from(["Poll", "Join"])),
                keys=draw(st.lists(st.sampled_from(["x", "y", "ä", "'"]), max_size=3)),
                started_at=started if has_start else None,
                ended_at=None
                if outcome is None
                else started + timedelta(microseconds=wait * grain),
                outcome=outcome,
                timeout_s=draw(st.sampled_from([None, 0.0, 0.1, 30.0])),
                ended_by=draw(st.sampled_from([None, "x"])),
                missed_trigger=outcome == "completed" and draw(st.booleans()),
            )
        )
    return rows


Journal = tuple[list[Row], list[list[Row]]]


@st.composite
def journals(draw: st.DrawFn) -> Journal:
    """Valid operations, and files in which each of them is, some of them several times, between
    rows that cannot be right."""
    rows = draw(operations())
    copies = draw(st.lists(st.sampled_from(rows), max_size=10))
    wrong = [
        operation(1_000_000 + number, outcome="vanished")
        for number in range(draw(st.integers(0, 3)))
    ]
    every = draw(st.permutations([*rows, *copies, *wrong]))
    cut = draw(st.integers(0, len(every)))
    return rows, [every[:cut], every[cut:]]
