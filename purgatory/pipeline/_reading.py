"""Reads journals: returns the valid rows, and counts all the others.

    files -> readable files -> rows read = rejected, each with a reason + duplicates + accepted

Each file is read once, as a whole, so damage in it is found before any of its rows counts. Accepted rows are written to
*pieces*: files in a folder of our own, in Arrow's format. They stay whatever happens to the journal after that.

Two rows with the same `run_id` and `operation_id` are duplicates. A run numbers its operations in order, so files with
different ranges of numbers have no duplicates in common. Only files whose ranges overlap are searched, see `_dedup`.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from purgatory.pipeline import _files
from purgatory.pipeline._dedup import divide_piece, merge_parts
from purgatory.pipeline._executor import Executor
from purgatory.pipeline._files import Listing, list_files
from purgatory.pipeline._pieces import Hour, IngestResult, ReadTask, RunStats, ingest

MAX_TASK_BYTES: Final = 16 * 1024 * 1024
"""About how much of Parquet a task reads."""
MAX_ATTEMPTS: Final = 5
"""At reading a journal while it is compacted."""


class NoJournal(Exception):
    """There is no journal where one should be."""


@dataclass(frozen=True, slots=True)
class Account:
    """One line of the account: how many rows or files of a folder there were, of what, and why."""

    folder: str
    what: str
    reason: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Source:
    """One folder of all journals, read."""

    pieces: list[str]
    """Files with the accepted rows. Those of `checks` may have duplicates."""
    run_stats: list[RunStats]
    """Of each run in each piece and file; of operations only."""
    hours: dict[int, Hour]
    """What happened in each hour since 1970; of operations only."""
    rows: int
    account: list[Account]


def size(executor: Executor, journals: Sequence[str]) -> int:
    """How many bytes the files of the journals have.

    Raises:
        NoJournal: a journal has no folder ``operations``.
    """
    return sum(sum(each.sizes.values()) for each in _listings(executor, journals, ("operations", "checks")).values())


def read(executor: Executor, journals: Sequence[str], folders: Sequence[str], work: str) -> dict[str, Source]:
    """Reads some folders of the journals.

    Args:
        folders: ``operations``, ``checks``, or both.
        work: a folder that all tasks see, which may be deleted when the pieces are not needed any more. The rejected rows are
            in ``work/rejected/FOLDER``.

    Raises:
        NoJournal: a journal has no folder ``operations``.
    """
    for _ in range(MAX_ATTEMPTS):
        listings = _listings(executor, journals, folders)
        large = [file for listing in listings.values() for file, bytes_ in listing.sizes.items() if bytes_ > MAX_TASK_BYTES]
        groups = dict(zip(large, executor(_files.row_groups_of, large), strict=True))
        tasks = [
            ReadTask(folder, number, parts, work)
            for folder, listing in listings.items()
            for number, parts in enumerate(_files.batches_of_parts(listing.sizes, groups, MAX_TASK_BYTES))
        ]
        results = executor(ingest, tasks)
        # A compaction may delete a file before it is listed, and write the file that replaces it after that folder was listed.
        again = _listings(executor, journals, folders)
        is_same = all(set(filter(_files.is_compacted, again[name].sizes)) <= listings[name].sizes.keys() for name in folders)
        if is_same and not any(result.has_vanished for result in results):
            break
    else:
        raise NoJournal(f"cannot read {', '.join(journals)}: it was compacted while it was read, {MAX_ATTEMPTS} times")
    return {
        folder: _source(
            executor, folder, work, listing, [each for each, of in zip(results, tasks, strict=True) if of.folder == folder]
        )
        for folder, listing in listings.items()
    }


def run_counters(executor: Executor, journals: Sequence[str]) -> dict[str, int]:
    """How many operations have ended in each run that goes on, was killed, or could not write all of its rows."""
    found: dict[str, int] = {}
    for counted in executor(_files.run_counters, _names(journals)):
        for run, count in counted.items():
            found[run] = max(count, found.get(run, 0))
    return found


def _names(journals: Sequence[str]) -> list[str]:
    """The journals, each once, as any process understands them."""
    return [*dict.fromkeys(name if "://" in name else os.path.abspath(name) for name in journals)]  # noqa: PTH100  (no URI)


def _listings(executor: Executor, journals: Sequence[str], folders: Sequence[str]) -> dict[str, Listing]:
    """The files of each folder, of all journals together."""
    names = _names(journals)
    tasks = [(name, folder) for folder in folders for name in names]
    found: dict[str, Listing] = {}
    for (name, folder), listing in zip(tasks, executor(list_files, tasks), strict=True):
        if folder == "operations" and not listing.is_there:
            raise NoJournal(f"cannot read {name!r} as a journal: it has no folder 'operations'")
        found[folder] = found[folder] + listing if folder in found else listing
    return found


def _source(executor: Executor, folder: str, work: str, listing: Listing, results: list[IngestResult]) -> Source:
    damaged = dict(chain.from_iterable(result.damaged.items() for result in results))
    # If one part of a large file is damaged, none of the file counts.
    whole = [result for result in results if not (result.files & damaged.keys())]
    read_rows = sum(result.rows for result in whole)
    rejected: Counter[str] = Counter()
    for result in whole:
        rejected.update(result.rejected)
    for result in results:
        if result.rejected and result not in whole:
            Path(result.rejected_rows).unlink()
    pieces = [piece for result in whole for piece in result.pieces]
    run_stats = [each for result in whole for each in result.run_stats]
    accepted = read_rows - rejected.total()
    duplicates = 0
    suspects = overlapping(run_stats)
    if suspects:
        count = max(1, sum(each.rows for each in run_stats if each.piece in suspects) // 1_000_000)
        divided = executor(partial(divide_piece, count=count), sorted(suspects))
        merge_tasks = [(f"{work}/merged-{number}", list(parts)) for number, parts in enumerate(zip(*divided, strict=True))]
        found = executor(merge_parts, merge_tasks)
        pieces = [piece for piece in pieces if piece not in suspects] + [piece for piece, _, _ in found]
        run_stats = [each for each in run_stats if each.piece not in suspects]
        run_stats += [each for _, of_piece, _ in found for each in of_piece]
        duplicates = sum(dropped for _, _, dropped in found)
    account = [
        Account(folder, "files", None, len(listing.sizes)),
        *([Account(folder, "files compacted", "another file stands for them", listing.replaced)] if listing.replaced else []),
        *(Account(folder, "files unreadable", f"{file}: {damaged[file]}", 1) for file in sorted(damaged)),
        Account(folder, "rows read", None, read_rows),
        *(Account(folder, "rows rejected", reason, rejected[reason]) for reason in sorted(rejected)),
    ]
    if folder == "operations":
        account += accepted_and_duplicates(folder, accepted, duplicates)
    hours: dict[int, Hour] = {}
    for result in whole:
        for hour, each in result.hours.items():
            hours[hour] = hours[hour] + each if hour in hours else each
    return Source(pieces, run_stats, hours, accepted - duplicates, account)


def accepted_and_duplicates(folder: str, rows: int, duplicates: int) -> list[Account]:
    """The last lines of the account of a folder that has `rows` rows which were not rejected."""
    return [
        Account(folder, "duplicates dropped", None, duplicates),
        Account(folder, "rows accepted", None, rows - duplicates),
    ]


def overlapping(run_stats: Iterable[RunStats]) -> set[str]:
    """The pieces that may have duplicates: of files that have some, or whose ranges of numbers overlap."""
    of_runs: dict[str, list[RunStats]] = defaultdict(list)
    for each in run_stats:
        of_runs[each.run_id].append(each)
    suspects = set()
    for of_run in of_runs.values():
        of_run.sort(key=lambda each: (each.first, each.last))
        suspects |= {each.piece for each in of_run if each.has_duplicates}
        furthest = None
        for each in of_run:
            if furthest is not None and each.first <= furthest.last:
                suspects |= {each.piece, furthest.piece}
            if furthest is None or each.last > furthest.last:
                furthest = each
    return suspects
