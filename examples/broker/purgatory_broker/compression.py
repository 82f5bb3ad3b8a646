"""The codecs of record batches, by their number in the attributes of a batch.

A few kilobytes may become gigabytes, so each codec stops at a limit.
"""

import mmap
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

MAX_SIZE: Final = 32 * 1024 * 1024
"""Bytes that the batches of one request may have when they are decompressed."""
XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
XERIAL_HEADER_SIZE: Final = 16


class TooLarge(ValueError):
    """The decompressed data have more bytes than the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"it is larger than {limit} bytes when it is decompressed")


def _none(data: bytes, limit: int) -> bytes:  # noqa: ARG001 - it is as large as it was sent
    return bytes(data)


def _gzip(data: bytes, limit: int) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    found = decompressor.decompress(data, limit + 1)
    if len(found) > limit:
        raise TooLarge(limit)
    if not decompressor.eof:
        raise ValueError("the data are incomplete")
    return found


def _snappy(data: bytes, limit: int) -> bytes:
    """Java's clients write blocks in a frame of snappy-java (xerial), other clients one block."""
    from cramjam import snappy  # noqa: PLC0415 - only compressed batches need it

    if not data.startswith(XERIAL_MAGIC):
        return _snappy_block(snappy, data, 0, limit)
    found, at = bytearray(), XERIAL_HEADER_SIZE
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if size < 0:
            raise ValueError(f"a block of {size} bytes")
        found += _snappy_block(snappy, data[at + 4 : at + 4 + size], len(found), limit)
        at += 4 + size
    return bytes(found)


def _snappy_block(snappy: Any, data: bytes, before: int, limit: int) -> bytes:
    if before + snappy.decompress_raw_len(data) > limit:
        raise TooLarge(limit)
    return bytes(snappy.decompress_raw(data))


def _lz4(data: bytes, limit: int) -> bytes:
    from cramjam import lz4  # noqa: PLC0415

    return _into(lz4.decompress_into, data, limit)


def _zstd(data: bytes, limit: int) -> bytes:
    from cramjam import zstd  # noqa: PLC0415

    return _into(zstd.decompress_into, data, limit)


def _into(decompress_into: Callable[[bytes, Any], int], data: bytes, limit: int) -> bytes:
    """Decompresses into memory of a fixed size, which the system provides as it is written to."""
    with mmap.mmap(-1, limit + 1) as found:
        try:
            size = decompress_into(data, found)
        except Exception as error:  # cramjam's own class has no name for this
            if "failed to write whole buffer" in str(error):
                raise TooLarge(limit) from error
            raise
        if size > limit:
            raise TooLarge(limit)
        return found[:size]


DECOMPRESS: Final[Mapping[int, Callable[[bytes, int], bytes]]] = {
    0: _none,
    1: _gzip,
    2: _snappy,
    3: _lz4,
    4: _zstd,
}


def decompress(codec: int, data: bytes, limit: int = MAX_SIZE) -> bytes:
    """The data as they were before a codec compressed them.

    Args:
        limit: limit of the result, in bytes; data without a codec may be larger.

    Raises:
        TooLarge: the result would be larger.
        ValueError: there is no such codec, or it has not written these data.
    """
    if codec not in DECOMPRESS:
        raise ValueError(f"there is no codec {codec}")
    try:
        return DECOMPRESS[codec](data, limit)
    except TooLarge:
        raise
    except Exception as error:  # each has errors of its own
        raise ValueError(f"codec {codec} cannot read it: {error}") from error
