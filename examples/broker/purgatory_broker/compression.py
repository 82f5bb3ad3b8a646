"""The codecs of record batches, by their number in the attributes of a batch."""

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Final

MAX_SIZE: Final = 100 * 1024 * 1024  # bytes, of a batch that is not compressed any more
XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
XERIAL_HEADER_SIZE: Final = 16


def _gzip(data: bytes) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    found = decompressor.decompress(data, MAX_SIZE)
    if not decompressor.eof:
        raise ValueError("the data are incomplete, or too large")
    return found


def _snappy(data: bytes) -> bytes:
    """Java's clients write blocks in a frame of snappy-java (xerial); others write one block."""
    from cramjam import snappy  # noqa: PLC0415 - only who compresses needs it

    def block(data: bytes) -> bytes:
        if (size := snappy.decompress_raw_len(data)) > MAX_SIZE:
            raise ValueError(f"a block of {size} bytes")
        return bytes(snappy.decompress_raw(data))

    if not data.startswith(XERIAL_MAGIC):
        return block(data)
    found, at = bytearray(), XERIAL_HEADER_SIZE
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        found += block(data[at + 4 : at + 4 + max(0, size)])
        at += 4 + max(0, size)
    return bytes(found)


def _lz4(data: bytes) -> bytes:
    from cramjam import lz4  # noqa: PLC0415

    return bytes(lz4.decompress(data))


def _zstd(data: bytes) -> bytes:
    from cramjam import zstd  # noqa: PLC0415

    return bytes(zstd.decompress(data))


DECOMPRESS: Final[Mapping[int, Callable[[bytes], bytes]]] = {0: bytes, 1: _gzip, 2: _snappy, 3: _lz4, 4: _zstd}


def decompress(codec: int, data: bytes) -> bytes:
    """The data as they were before a codec compressed them.

    Raises:
        ValueError: there is no such codec, or it has not written these data.
    """
    if codec not in DECOMPRESS:
        raise ValueError(f"there is no codec {codec}")
    try:
        return DECOMPRESS[codec](data)
    except Exception as error:  # each has errors of its own
        raise ValueError(f"codec {codec} cannot read it: {error}") from error
