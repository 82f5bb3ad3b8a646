"""Record batches: the checks of their records, and the search for records by time in every
codec."""

import gzip
import struct
from collections.abc import Callable, Iterator

import pytest
from cramjam import lz4, snappy, zstd
from raw import Direct, make_batch, running_broker


def xerial(data: bytes, size: int = 40) -> bytes:
    """The frame of snappy-java, in blocks of this size."""
    framed = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for at in range(0, len(data), size):
        block = bytes(snappy.compress_raw(data[at : at + size]))
        framed += struct.pack(">i", len(block)) + block
    return framed


CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, bytes),
    "gzip": (1, gzip.compress),
    "snappy": (2, lambda data: bytes(snappy.compress_raw(data))),
    "snappy of Java": (2, xerial),
    "lz4": (3, lambda data: bytes(lz4.compress(data))),
    "zstd": (4, lambda data: bytes(zstd.compress(data))),
}
VALUES = [b"a", b"b" * 200, b"c" * 20_000, b"d"]


@pytest.mark.parametrize("codec", CODECS)
async def test_records_are_found_by_time_in_every_codec(codec: str) -> None:
    number, compress = CODECS[codec]
    async with running_broker() as client:
        for time in (1000, 2000):
            batch = make_batch(*VALUES, time=time, attributes=number, compress=compress)
            assert (await client.produce("topic", batch))[0][0] == "none"
        times = (0, 1002, 1003, 1004, 2003, 2004, -3)
        found = [await client.list_offset("topic", time) for time in times]
    assert found == [(0, 1000), (2, 1002), (3, 1003), (4, 2000), (7, 2003), (-1, -1), (7, 2003)]


def refused() -> Iterator[tuple[bytes, str]]:
    """Batches, and the errors for them."""
    one = make_batch(b"one")
    yield b"", "corrupt_message"
    yield one[:-1], "corrupt_message"
    yield one[:-1] + bytes([one[-1] ^ 1]), "corrupt_message"
    yield one[:16] + b"\1" + one[17:], "unsupported_for_message_format"  # an older one
    yield one + one, "invalid_record"
    yield make_batch(), "invalid_record"
    yield make_batch(b"one", attributes=0x10), "transactional_id_authorization_failed"
    yield make_batch(b"x" * 2_000_000), "message_too_large"
    for records in (b"\xff" * 40, b"\x80", b"\x01", b"\x7e"):  # impossible lengths
        yield make_batch(b"v", compress=lambda _, records=records: records), "invalid_record"
    for number, compress in CODECS.values():
        options = {"attributes": number, "compress": compress}
        yield from ((make_batch(*VALUES, count=n, **options), "invalid_record") for n in (3, 5))
    for number in range(1, 8):
        for garbage in (b"", b"garbage" * 10):
            batch = make_batch(b"v", attributes=number, compress=lambda _, data=garbage: data)
            yield batch, "unknown_server_error"


async def test_unfit_batch_gets_kafkas_error(client: Direct) -> None:
    for batch, error in refused():
        assert await client.produce("topic", batch) == [(error, -1)], batch[:100]
    assert await client.produce("topic", make_batch(b"one")) == [("none", 0)]
