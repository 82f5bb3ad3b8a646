"""When thresholds were reached: the same as by looking at every signal, for any values."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.pipeline.streaming._events import SIGNALS
from purgatory.pipeline.streaming._value_history import NEVER, ValueHistory

MIN, MAX = -(2**63), 2**63 - 1
VALUES = st.one_of(st.integers(-3, 6), st.sampled_from([MIN, MIN + 1, MAX - 1, MAX]))


def history(signals: list[tuple[int, str, int]]) -> ValueHistory:
    rows = [dict(zip(SIGNALS.names, row, strict=True)) for row in signals]
    half = len(rows) // 2
    return ValueHistory(
        [pa.RecordBatch.from_pylist(some, schema=SIGNALS) for some in (rows[:half], rows[half:])]
    )


@settings(deadline=None)
@given(
    signals=st.lists(st.tuples(st.integers(1, 9), st.sampled_from("xyz"), VALUES), min_size=1),
    wanted=st.lists(st.tuples(st.sampled_from("wxyz"), VALUES)),
)
def test_first_sufficient_signal_reaches_the_threshold(signals, wanted) -> None:
    found = history(signals)
    indexes = found.key_indexes(pa.array([key for key, _ in wanted], pa.string()))
    thresholds = np.array([threshold for _, threshold in wanted], np.int64)

    reached = [
        min(
            (at for at, name, value in signals if name == key and value >= threshold), default=NEVER
        )
        for key, threshold in wanted
    ]
    assert found.reached_at(indexes, thresholds).tolist() == reached
    decisive = [
        (found.keys[index].as_py(), at, value)
        for index, at, value in found.decisive_signals(indexes, thresholds)
    ]
    for (key, threshold), at in zip(wanted, reached, strict=True):
        assert at == NEVER or any(
            name == key and when == at and value >= threshold for name, when, value in decisive
        )
    assert {(name, at) for name, at, _ in decisive} <= {
        (key, at) for (key, _), at in zip(wanted, reached, strict=True)
    }
    assert len(decisive) <= len(set(wanted))
    assert dict(found.final_values()) == {
        key: max(v for _, name, v in signals if name == key) for _, key, _ in signals
    }
