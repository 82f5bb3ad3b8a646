"""Damaged and hostile requests and batches, at length: an error or a message, and bounded
memory."""

import gzip
import struct
import tracemalloc
from typing import Any

import pytest
from cramjam import lz4, snappy, zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from purgatory_broker.batches import HEADER, check_records, iter_records, read_batch
from purgatory_broker.codec import MAX_ITEMS
from purgatory_broker.compression import MAX_SIZE
from purgatory_broker.responses import ApiError
from purgatory_broker.wire import APIS, BadRequest, Request, read_request
from raw import LOCAL, PEER, framed, make_batch
from test_bad_input import REQUESTS
from test_batches import xerial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

VERSIONS = [
    (api.name, version)
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
]
FRAMES = [framed(name, version, **REQUESTS.get(name, {})) for name, version in VERSIONS]
COMPRESS = {
    1: gzip.compress,
    2: lambda data: bytes(snappy.compress_raw(data)),
    3: lambda data: bytes(lz4.compress(data)),
    4: lambda data: bytes(zstd.compress(data)),
    5: xerial,
}


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, first: int = 0) -> bytes:
    """Bytes of which some, from the one with the index `first`, are changed, inserted or
    removed."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(first, max(first, len(data) - 1)))
        way = draw(st.sampled_from(["set", "insert", "remove", "huge", "repeat"]))
        if way == "set" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif way == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=10))
        elif way == "remove":
            del data[at : at + draw(st.integers(1, 10))]
        elif way == "huge":
            data[at : at + 4] = draw(st.sampled_from([b"\x7f\xff\xff\xff", b"\xff" * 9 + b"\x01"]))
        else:
            data[at:at] = data[at : at + 16] * draw(st.integers(1, 200))
    return bytes(data)


def peak_of(function: Any) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@settings(max_examples=6000, deadline=None)
@given(st.data())
def test_damaged_requests_take_bounded_memory(data: st.DataObject) -> None:
    frame = data.draw(damaged(data.draw(st.sampled_from(FRAMES)), 4))

    def read() -> None:
        try:
            request = read_request(frame, LOCAL, PEER, print)
        except BadRequest:
            return
        assert isinstance(request, Request)

    read()  # loads the schema
    assert peak_of(read) < 100_000 + 600 * len(frame)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VERSIONS), st.integers(0, 255), st.integers(0, 300_000))
def test_monotonous_requests_take_bounded_memory(
    version: tuple[str, int], byte: int, size: int
) -> None:
    key = next(api.key for api in APIS.values() if api.name == version[0])
    frame = struct.pack(">hhih", key, version[1], 1, -1) + bytes([byte]) * size

    def read() -> None:
        try:
            read_request(frame, LOCAL, PEER, print)
        except BadRequest:
            pass

    read()
    assert peak_of(read) < 1000 * MAX_ITEMS + 10 * size


@settings(max_examples=3000, deadline=None)
@given(st.data())
def test_damaged_batches_take_bounded_memory(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(list(COMPRESS)))
    value = data.draw(st.binary(max_size=50)) * data.draw(st.integers(0, 50))
    plain = make_batch(value, b"v", None, key=b"k")[HEADER.size :]
    payload = data.draw(damaged(COMPRESS[codec](plain)))
    count = data.draw(st.sampled_from([1, 3, 4, 2**31 - 1]))
    whole = make_batch(
        b"v", attributes=2 if codec == 5 else codec, compress=lambda _: payload, count=count
    )

    codes = set[str]()

    def check() -> None:
        batch = read_batch(whole)
        try:
            records = check_records(whole, batch)
            assert len(records) <= MAX_SIZE
            list(iter_records(records, batch))
        except ApiError as error:
            codes.add(error.code.name)
        except (IndexError, ValueError):  # only the lengths of records were checked
            pass

    assert peak_of(check) < 3 * MAX_SIZE
    assert codes <= {"message_too_large", "invalid_record", "unknown_server_error"}


@settings(max_examples=3000, deadline=None)
@given(st.data())
def test_damaged_headers_of_batches_are_refused(data: st.DataObject) -> None:
    whole = data.draw(damaged(make_batch(b"v" * 40, b"w")))

    try:
        batch = read_batch(whole)
    except ApiError as error:
        code = error.code.name
    else:
        code = ""
        assert HEADER.size <= batch.size <= len(whole)
    assert code in ("", "corrupt_message", "unsupported_for_message_format")
