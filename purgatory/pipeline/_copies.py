"""Drops the copies of operations, where there may be any: see `_reading`.

Pieces are divided by `operation_id`, so that all copies of an operation come into the same part; of each part the copies are
dropped.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from purgatory.pipeline._pieces import Numbers, numbers_of, one_chunk, plain, read_piece, write_piece

pc: Final[Any] = pyarrow.compute


def scattered(piece: str, count: int) -> list[str]:
    """Divides a piece into `count` parts, and returns their names."""
    rows = read_piece(piece)
    bucket = rows["operation_id"].to_numpy() % count
    names = [f"{piece}-of-{place}" for place in range(count)]
    for place, name in enumerate(names):
        write_piece(name, one_chunk(rows.filter(pa.array(bucket == place))))
    return names


def merged(task: tuple[str, list[str]]) -> tuple[str, list[Numbers], int]:
    """Writes a piece with the rows of others, each operation once.

    Args:
        task: the name of the piece, and those of the others.

    Returns:
        The piece, what is known of it, and how many copies were dropped.
    """
    piece, others = task
    rows = one_chunk(pa.concat_tables([read_piece(other) for other in others]))
    kept = without_copies(rows)
    write_piece(piece, kept)
    return piece, numbers_of(piece, kept), rows.num_rows - kept.num_rows


def without_copies(rows: pa.Table) -> pa.Table:
    """One row for each operation: the one with the most columns filled; among equals, the one that sorts last.

    Args:
        rows: of operations, in one chunk.
    """
    run, number = rows["run_id"].chunk(0).indices.to_numpy(), rows["operation_id"].to_numpy()
    order = np.lexsort((number, run))
    is_next = (np.diff(run[order]) == 0) & (np.diff(number[order]) == 0)
    if not is_next.any():
        return rows
    is_copied = np.zeros(len(order), bool)
    is_copied[order[:-1][is_next]] = True
    is_copied[order[1:][is_next]] = True
    places = np.flatnonzero(is_copied)
    copies = plain(rows.take(pa.array(places)))
    filled = sum((np.asarray(pc.is_valid(column)).astype(np.int8) for column in copies.columns), np.zeros(len(places), np.int8))
    copies = copies.set_column(copies.column_names.index("keys"), "keys", pc.binary_join(copies["keys"], "\0"))
    copies = copies.append_column("filled", pa.array(filled)).append_column("place", pa.array(places))
    identity = ["run_id", "operation_id"]
    others = ["filled", *(name for name in rows.column_names if name not in identity), "place"]
    best_first = [(name, "ascending") for name in identity] + [(name, "descending") for name in others]
    best_first = copies.take(pc.sort_indices(copies, sort_keys=best_first))
    is_first = ~(_same_as_before(best_first["run_id"]) & _same_as_before(best_first["operation_id"]))
    keep = ~is_copied
    keep[best_first["place"].to_numpy()[is_first]] = True
    return one_chunk(rows.filter(pa.array(keep)))


def _same_as_before(column: pa.ChunkedArray) -> Any:
    same = np.asarray(pc.equal(column.slice(1), column.slice(0, max(len(column) - 1, 0))))
    return np.concatenate(([False], same))
