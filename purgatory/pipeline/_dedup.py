"""Drops duplicate operations from the pieces that may have some: see `_reading`.

Pieces are divided by `operation_id`, so that all duplicates of an operation are in the same part, and each part is deduplicated
by itself.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from purgatory.pipeline._pieces import RunStats, one_chunk, plain, read_piece, run_stats, write_piece

pc: Final[Any] = pyarrow.compute


def divide_piece(piece: str, count: int) -> list[str]:
    """Divides a piece into `count` parts, and returns their names."""
    rows = read_piece(piece)
    bucket = rows["operation_id"].to_numpy() % count
    names = [f"{piece}-of-{number}" for number in range(count)]
    for number, name in enumerate(names):
        write_piece(name, one_chunk(rows.filter(pa.array(bucket == number))))
    return names


def merge_parts(task: tuple[str, list[str]]) -> tuple[str, list[RunStats], int]:
    """Writes a piece with the rows of several parts, each operation once.

    Args:
        task: the name of the piece, and those of the parts.

    Returns:
        The name of the piece, its statistics, and how many duplicates were dropped.
    """
    piece, parts = task
    rows = one_chunk(pa.concat_tables([read_piece(part) for part in parts]))
    kept = drop_duplicates(rows)
    write_piece(piece, kept)
    return piece, run_stats(piece, kept), rows.num_rows - kept.num_rows


def drop_duplicates(rows: pa.Table) -> pa.Table:
    """One row for each operation: the one with the most columns filled; among equals, the one that sorts last.

    Args:
        rows: of operations, in one chunk.
    """
    run, number = rows["run_id"].chunk(0).indices.to_numpy(), rows["operation_id"].to_numpy()
    order = np.lexsort((number, run))
    is_next = (np.diff(run[order]) == 0) & (np.diff(number[order]) == 0)
    if not is_next.any():
        return rows
    is_duplicate = np.zeros(len(order), bool)
    is_duplicate[order[:-1][is_next]] = True
    is_duplicate[order[1:][is_next]] = True
    indices = np.flatnonzero(is_duplicate)
    found = plain(rows.take(pa.array(indices)))
    filled = sum((np.asarray(pc.is_valid(column)).astype(np.int8) for column in found.columns), np.zeros(len(indices), np.int8))
    found = found.set_column(found.column_names.index("keys"), "keys", pc.binary_join(found["keys"], "\0"))
    found = found.append_column("filled", pa.array(filled)).append_column("index", pa.array(indices))
    identity = ["run_id", "operation_id"]
    others = ["filled", *(name for name in rows.column_names if name not in identity), "index"]
    best_first = [(name, "ascending") for name in identity] + [(name, "descending") for name in others]
    found = found.take(pc.sort_indices(found, sort_keys=best_first))
    is_first = ~(_same_as_before(found["run_id"]) & _same_as_before(found["operation_id"]))
    keep = ~is_duplicate
    keep[found["index"].to_numpy()[is_first]] = True
    return one_chunk(rows.filter(pa.array(keep)))


def _same_as_before(column: pa.ChunkedArray) -> Any:
    same = np.asarray(pc.equal(column.slice(1), column.slice(0, max(len(column) - 1, 0))))
    return np.concatenate(([False], same))
