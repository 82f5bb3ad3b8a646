"""One task of reading a journal: rows of some files are validated, and written to *pieces*, with statistics of what is in them.

A piece is a file with accepted rows, in Arrow's format. Small files share a piece; a large file has several.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc
import pyarrow.parquet as pq

from purgatory.pipeline import _rows
from purgatory.pipeline._files import Part
from purgatory.pipeline._validation import rejections

pc: Final[Any] = pyarrow.compute
MAX_ROWS: Final = 1_000_000
"""Of a piece."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The files that one task reads."""

    folder: str
    number: int
    parts: Sequence[Part]
    work: str


@dataclass(frozen=True, slots=True)
class RunStats:
    """Statistics of the operations of one run, in one file or in one piece."""

    piece: str
    run_id: str
    first: int
    """The lowest `operation_id`."""
    last: int
    rows: int
    has_duplicates: bool
    """Whether an `operation_id` occurs more than once."""
    earliest: int
    """Of all instants in the rows, in microseconds since 1970."""
    latest: int


@dataclass(frozen=True, slots=True)
class Hour:
    """What happened in an hour: how many operations started or ended, and the first and the last such instant."""

    events: int
    first: int
    last: int

    def __add__(self, other: "Hour") -> "Hour":
        """Both together."""
        return Hour(self.events + other.events, min(self.first, other.first), max(self.last, other.last))


@dataclass(slots=True)
class IngestResult:
    """What a task has read and written."""

    pieces: list[str] = field(default_factory=list)
    rejected_rows: str = ""
    """The file with the rejected rows, if there are any."""
    files: set[str] = field(default_factory=set)
    damaged: dict[str, str] = field(default_factory=dict)
    has_vanished: bool = False
    rows: int = 0
    """In the files that are not damaged."""
    rejected: Counter[str] = field(default_factory=Counter)
    run_stats: list[RunStats] = field(default_factory=list)
    hours: dict[int, Hour] = field(default_factory=dict)


def ingest(task: ReadTask) -> IngestResult:
    """Reads the files of a task, and writes the pieces."""
    read = _rows.read(task.parts, task.folder)
    result = IngestResult(damaged=read.damaged, has_vanished=read.has_vanished)
    if not read.files or read.has_vanished:
        return result
    result.files = set(read.files)
    rows = one_chunk(read.table)
    files = np.repeat(np.arange(len(read.files), dtype=np.int32), read.counts)
    result.rows = rows.num_rows
    reason, texts = rejections(rows, task.folder)
    is_accepted = reason < 0
    if not is_accepted.all():
        _write_rejected(rows, files, read.files, reason, texts, result, task)
        rows, files = one_chunk(rows.filter(pa.array(is_accepted))), files[is_accepted]
    for first in range(0, rows.num_rows, MAX_ROWS):
        piece, some = f"{task.work}/{task.folder}-{task.number}-{first // MAX_ROWS}", rows.slice(first, MAX_ROWS)
        write_piece(piece, some)
        result.pieces.append(piece)
        if task.folder == "operations":
            result.run_stats += run_stats(piece, some, files[first : first + MAX_ROWS])
    if task.folder == "operations":
        result.hours = _hours(rows)
    return result


def _write_rejected(
    rows: pa.Table, files: Any, names: list[str], reason: Any, texts: list[str], result: IngestResult, task: ReadTask
) -> None:
    is_rejected = reason >= 0
    result.rejected.update(Counter(texts[number] for number in reason[is_rejected]))
    rejected = plain(rows.filter(pa.array(is_rejected)))
    rejected = rejected.append_column("reason", pa.array(texts).take(pa.array(reason[is_rejected])))
    rejected = rejected.append_column("file", pa.array(names).take(pa.array(files[is_rejected])))
    folder = Path(task.work, "rejected", task.folder)
    folder.mkdir(parents=True, exist_ok=True)
    result.rejected_rows = str(folder / f"part-{task.number:05}.parquet")
    pq.write_table(rejected, result.rejected_rows)


def ensure_rejected_table(work: str, folder: str) -> None:
    """Writes an empty table of the rejected rows of a folder, if there is none."""
    rejected = Path(work, "rejected", folder)
    if not rejected.exists():
        rejected.mkdir(parents=True)
        schema = plain(_rows.TYPES[folder].empty_table()).schema
        schema = schema.append(pa.field("reason", pa.string())).append(pa.field("file", pa.string()))
        pq.write_table(schema.empty_table(), rejected / "part-none.parquet")


def plain(rows: pa.Table) -> pa.Table:
    """The rows, with plain columns in place of dictionary-encoded ones."""
    types = [each.type.value_type if pa.types.is_dictionary(each.type) else each.type for each in rows.schema]
    return rows.cast(pa.schema([each.with_type(type_) for each, type_ in zip(rows.schema, types, strict=True)]))


def one_chunk(rows: pa.Table) -> pa.Table:
    """The same rows, with one array and one dictionary for each column."""
    return rows.unify_dictionaries().combine_chunks()


def write_piece(piece: str, rows: pa.Table) -> None:
    """Writes a piece atomically, since a task may run twice."""
    Path(piece).parent.mkdir(parents=True, exist_ok=True)
    partial = Path(f"{piece}.partial")
    with pa.ipc.new_file(str(partial), rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as file:
        file.write_table(rows)
    partial.rename(piece)


def read_piece(piece: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a piece."""
    with pa.memory_map(piece) as source:
        options = pa.ipc.IpcReadOptions()
        if columns is not None:
            names = pa.ipc.open_file(source).schema.names
            options.included_fields = [names.index(name) for name in columns]
        return pa.ipc.open_file(source, options=options).read_all()


def plain_piece(piece: str) -> pa.Table:
    """The rows of a piece, without dictionary encoding."""
    return plain(read_piece(piece))


def run_stats(piece: str, rows: pa.Table, files: Any = None) -> list[RunStats]:
    """Statistics of each run in each file.

    Args:
        rows: of the piece, in one chunk.
        files: the number of the file of each row; by default all are from one.
    """
    runs = rows["run_id"].chunk(0)
    dictionary = runs.dictionary.to_pylist()
    group = runs.indices.to_numpy().astype(np.int64)
    if files is not None:
        group += files.astype(np.int64) * len(dictionary)
    ids = rows["operation_id"].to_numpy()
    if np.any((np.diff(group) < 0) | ((np.diff(group) == 0) & (np.diff(ids) <= 0))):
        order = np.lexsort((ids, group))
        group, ids = group[order], ids[order]
    else:
        order = None
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    duplicates = np.add.reduceat(np.concatenate(([False], (np.diff(ids) == 0) & (np.diff(group) == 0))).astype(int), starts)
    earliest, latest = (_instants(rows, function, order) for function in (pc.min_element_wise, pc.max_element_wise))
    ends = np.append(starts[1:], len(ids))
    first, last = np.minimum.reduceat(earliest, starts), np.maximum.reduceat(latest, starts)
    return [
        RunStats(
            piece,
            dictionary[group[start] % len(dictionary)],
            int(ids[start]),
            int(ids[end - 1]),
            int(end - start),
            bool(duplicates[run]),
            int(first[run]),
            int(last[run]),
        )
        for run, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _instants(rows: pa.Table, function: Any, order: Any) -> Any:
    found = function(rows["started_at"].cast(pa.int64()), rows["ended_at"].cast(pa.int64())).to_numpy()
    return found if order is None else found[order]


def _hours(rows: pa.Table) -> dict[int, Hour]:
    found: dict[int, Hour] = {}
    for name in ("started_at", "ended_at"):
        times = rows[name].drop_null().cast(pa.int64())
        table = pa.table({"hour": pc.divide(times, 3_600_000_000), "at": times})
        for hour in table.group_by("hour").aggregate([("at", "count"), ("at", "min"), ("at", "max")]).to_pylist():
            each = Hour(hour["at_count"], hour["at_min"], hour["at_max"])
            found[hour["hour"]] = found[hour["hour"]] + each if hour["hour"] in found else each
    return found
