"""Operations and signals as binary messages: shorter than JSON, without a schema registry.

The fields are those types of Kafka's protocol, which every client has to read and write anyway:
big-endian integers; STRING is an INT16 with the number of bytes, then UTF-8; ARRAY is an INT32 with
the number of elements, then these. Instants are INT64, in microseconds since 1970.

    operation   INT8 1   STRING operation_id   ARRAY of (STRING key, INT64 threshold)   STRING mode   INT64 registered_at   INT64 deadline
    signal      INT8 1   STRING key            INT64 value                              INT64 at

The first byte is the version. The signal that "paid-7" has reached 1 at 12:00:20 of 2026-01-01 has
25 bytes:

    01   00 06 70 61 69 64 2d 37   00 00 00 00 00 00 00 01   00 06 47 52 56 3d 1d 00
"""  # a table

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

VERSION: Final = 1
INSTANT: Final = pa.timestamp("us", "UTC")
REQUIREMENTS: Final = pa.list_(pa.struct({"key": pa.string(), "threshold": pa.int64()}))
COLUMNS: Final = {
    "operations": {
        "operation_id": pa.string(),
        "requirements": REQUIREMENTS,
        "mode": pa.string(),
        "registered_at": INSTANT,
        "deadline": INSTANT,
    },
    "signals": {"key": pa.string(), "value": pa.int64(), "at": INSTANT},
}
"""The fields of the messages, in the order of the columns of `OPERATIONS` and `SIGNALS`."""
PROBLEM: Final = "problem"
"""The column with the reason why a message could not be read; null if it could."""


def encode_operation(
    operation_id: str,
    requirements: Iterable[tuple[str, int]],
    mode: str,
    registered_at: int,
    deadline: int,
) -> bytes:
    """The message of an operation.

    Args:
        operation_id: at most 32,767 bytes of UTF-8, as all strings here.
        requirements: pairs of a key and a threshold.
        mode: `all` or `any`.
        registered_at: in microseconds since 1970.
        deadline: in microseconds since 1970.
    """
    pairs = [_string(key) + struct.pack(">q", threshold) for key, threshold in requirements]
    head = struct.pack(">b", VERSION) + _string(operation_id) + struct.pack(">i", len(pairs))
    return head + b"".join(pairs) + _string(mode) + struct.pack(">qq", registered_at, deadline)


def encode_signal(key: str, value: int, at: int) -> bytes:
    """The message of a signal: `key` has reached `value`, at an instant in microseconds since
    1970."""
    return struct.pack(">b", VERSION) + _string(key) + struct.pack(">qq", value, at)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def decode_batches(batches: Iterator[pa.RecordBatch], kind: str) -> Iterator[pa.RecordBatch]:
    """Replaces the column `value` of each batch by the columns of the messages in it, and by
    `problem`.

    Args:
        kind: `operations` or `signals`.
    """
    decode: Callable[[bytes], tuple[Any, ...]] = _operation if kind == "operations" else _signal
    columns = COLUMNS[kind]
    nothing = (None,) * len(columns)
    for batch in batches:
        rows, problems = [], []
        for value in batch.column("value").to_pylist():
            row, problem = nothing, None
            try:
                row = decode(value)
            except TypeError:
                problem = "it has no value"
            except struct.error:
                problem = f"it is no message: it ends too early, after {len(value)} bytes"
            except ValueError as error:
                problem = f"it is no message: {error}"
            rows.append(row)
            problems.append(problem)
        values = zip(*rows, strict=True) if rows else ((),) * len(columns)
        made = {
            name: _column(column, type_)
            for (name, type_), column in zip(columns.items(), values, strict=True)
        }
        rest = {name: batch.column(name) for name in batch.schema.names if name != "value"}
        yield pa.RecordBatch.from_pydict({**made, **rest, PROBLEM: pa.array(problems, pa.string())})


def _column(values: tuple[Any, ...], type_: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).cast(type_) if type_ == INSTANT else pa.array(values, type_)


def _operation(message: bytes) -> tuple[Any, ...]:
    offset = _begin(message)
    operation_id, offset = _text(message, offset)
    (count,) = struct.unpack_from(">i", message, offset)
    offset += 4
    requirements = []
    for _ in range(count):
        key, offset = _text(message, offset)
        (threshold,) = struct.unpack_from(">q", message, offset)
        offset += 8
        requirements.append({"key": key, "threshold": threshold})
    mode, offset = _text(message, offset)
    registered_at, deadline = struct.unpack_from(">qq", message, offset)
    _end(message, offset + 16)
    return operation_id, requirements, mode, registered_at, deadline


def _signal(message: bytes) -> tuple[Any, ...]:
    key, offset = _text(message, _begin(message))
    value, at = struct.unpack_from(">qq", message, offset)
    _end(message, offset + 16)
    return key, value, at


def _begin(message: bytes) -> int:
    (version,) = struct.unpack_from(">b", message)
    if version != VERSION:
        raise ValueError(f"expected version {VERSION}, got {version}")
    return 1


def _text(message: bytes, offset: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", message, offset)
    end = offset + 2 + length
    if length < 0 or end > len(message):
        raise ValueError(f"a string of {length} bytes does not fit into {len(message)}")
    return message[offset + 2 : end].decode(), end


def _end(message: bytes, offset: int) -> None:
    if offset != len(message):
        raise ValueError(f"it has {len(message) - offset} bytes after its end")
