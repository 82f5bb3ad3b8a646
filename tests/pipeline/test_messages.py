"""Binary messages: written messages can be read, and any other input is reported as a problem and
has no effect on the rest."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.pipeline.streaming import encode_operation, encode_signal
from purgatory.pipeline.streaming._messages import COLUMNS, decode_batches

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=20)


def rows(kind: str, *values: bytes | None) -> list[dict]:
    batch = pa.RecordBatch.from_pydict(
        {"value": pa.array(values, pa.binary()), "offset": range(len(values))}
    )
    (made,) = decode_batches(iter([batch]), kind)
    assert made.schema.names == [*COLUMNS[kind], "offset", "problem"]
    assert made["offset"].to_pylist() == list(range(len(values)))
    return pa.table(
        [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            for column in made.columns
        ],
        names=made.schema.names,
    ).to_pylist()


@given(TEXT, st.lists(st.tuples(TEXT, INT64), max_size=3), TEXT, INT64, INT64)
def test_an_operation_is_read_as_it_was_written(
    operation_id, requirements, mode, registered_at, deadline
) -> None:
    (row,) = rows(
        "operations", encode_operation(operation_id, requirements, mode, registered_at, deadline)
    )

    assert row == {
        "operation_id": operation_id,
        "requirements": [{"key": key, "threshold": threshold} for key, threshold in requirements],
        "mode": mode,
        "registered_at": registered_at,
        "deadline": deadline,
        "offset": 0,
        "problem": None,
    }


def test_a_signal_has_the_bytes_that_are_described() -> None:
    message = encode_signal("paid-7", 1, 1_767_268_820_000_000)

    assert message == bytes.fromhex("01 0006 706169642d37 0000000000000001 000647 52563d1d00")
    assert rows("signals", message) == [
        {"key": "paid-7", "value": 1, "at": 1_767_268_820_000_000, "offset": 0, "problem": None}
    ]


@given(st.binary(max_size=40), st.sampled_from(list(COLUMNS)))
def test_unreadable_message_alone_has_a_problem(message: bytes, kind: str) -> None:
    good = (
        encode_signal("x", 1, 5)
        if kind == "signals"
        else encode_operation("a", [("x", 1)], "all", 1, 2)
    )

    before, row, after = rows(kind, good, b"\2" + message, good)

    assert (before["problem"], after["problem"]) == (None, None)
    assert row["problem"] == "it is no message: expected version 1, got 2"
    (row,) = rows(kind, b"\1" + message)
    assert row["problem"] is None or row["problem"].startswith("it is no message: ")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (None, "it has no value"),
        (b"", "it is no message: it ends too early, after 0 bytes"),
        (encode_signal("x", 1, 5)[:-1], "it is no message: it ends too early, after 19 bytes"),
        (
            encode_signal("x", 1, 5) + b"!",
            "it is no message: it has 1 bytes after its end",
        ),
        (b"\1\xff\xff", "it is no message: a string of -1 bytes does not fit into 3"),
        (b"\1\x00\x02x", "it is no message: a string of 2 bytes does not fit into 4"),
        (
            b"\1\x00\x01\xff" + bytes(16),
            "it is no message: 'utf-8' codec can't decode byte 0xff in position 0",
        ),
    ],
)
def test_a_problem_says_what_is_wrong(message: bytes | None, problem: str) -> None:
    (row,) = rows("signals", message)

    assert row["problem"].startswith(problem) and row["key"] is None


def test_a_batch_without_rows_stays_without() -> None:
    assert rows("operations") == []
