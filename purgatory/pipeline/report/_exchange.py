"""What tasks leave for other tasks: tables, divided so that all rows that belong together come to the same one.

    first tasks    one for each piece     what they found is divided into shards, and written to one file each
    second tasks   one for each shard     each reads its parts of all those files

This is the shuffle of Spark, by files. What goes through it are columns of numbers, and that is what it is good for.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from purgatory.pipeline.report._plan import Ints

Segment = tuple[str, int, int]
"""The file, the first byte and the length of a table."""
Segments = dict[str, dict[int, Segment]]
"""By the name of the table and the shard."""


def shard_of(*names: str) -> int:
    """A number that is the same in all processes."""
    return crc32("\0".join(names).encode())


def leave(file: str, tables: dict[str, tuple[pa.Table, Any]], shards: int) -> Segments:
    """Writes tables to a file, divided.

    Args:
        tables: for each name a table, and for each of its rows a number that decides where it goes.
    """
    left: Segments = {}
    partial = Path(f"{file}.partial")
    with partial.open("wb") as out:
        for name, (table, numbers) in tables.items():
            for shard, rows in _divided(table, np.asarray(numbers) % shards):
                start = out.tell()
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                with pa.ipc.new_stream(out, table.schema, options=options) as stream:
                    stream.write_table(rows)
                left.setdefault(name, {})[shard] = (file, start, out.tell() - start)
    partial.rename(file)
    return left


def _divided(table: pa.Table, shard: Ints) -> list[tuple[int, pa.Table]]:
    if len(shard) == 0:
        return []
    if (shard == shard[0]).all():
        return [(int(shard[0]), table.combine_chunks())]
    order = np.argsort(shard, kind="stable")
    ordered = table.take(pa.array(order)).combine_chunks()
    starts = np.flatnonzero(np.diff(shard[order], prepend=-1))
    ends = [*starts[1:], len(order)]
    return [(int(shard[order[start]]), ordered.slice(start, end - start)) for start, end in zip(starts, ends, strict=True)]


def found(segments: Sequence[Segment]) -> list[pa.Table]:
    """The tables that were left."""
    tables = []
    for file, start, length in segments:
        with pa.memory_map(file) as source:
            source.seek(start)
            tables.append(pa.ipc.open_stream(source.read_buffer(length)).read_all())
    return tables
