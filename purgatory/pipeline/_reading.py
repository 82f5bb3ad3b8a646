"""Reads journals: gives the rows that can be trusted, and accounts for all the others.

    files -> readable files -> rows read = rejected, each with a reason + duplicates + accepted

Each file is read once, as a whole, so damage in it is found before any of its rows counts. What is accepted goes into
*pieces*: files in a folder of our own, in Arrow's format, which open at once. Whatever becomes of the journal after that, the
pieces stay.

Two rows with the same `run_id` and `operation_id` are copies. A run numbers its operations, and each file has the next ones; so
files whose numbers do not overlap have no copies, which is told without comparing rows. Only the others are searched.
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
from purgatory.pipeline._copies import merged, scattered
from purgatory.pipeline._files import Listing, listed
from purgatory.pipeline._pieces import Admission, Hour, Numbers, Portion, admitted
from purgatory.pipeline._spread import Spread

BYTES: Final = 16 * 1024 * 1024
"""How much of Parquet a task reads, about."""
ATTEMPTS: Final = 5
"""How often it is tried to read a journal while somebody compacts it."""


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
    """Files with the accepted rows. Of `checks` there may be copies among them."""
    numbers: list[Numbers]
    """What is known of each run, by piece and file; of operations only."""
    hours: dict[int, Hour]
    """What happened in each hour since 1970; of operations only."""
    rows: int
    account: list[Account]


def size(spread: Spread, journals: Sequence[str]) -> int:
    """How many bytes the files of the journals have.

    Raises:
        NoJournal: a journal has no folder ``operations``.
    """
    return sum(sum(each.sizes.values()) for each in _listings(spread, journals, ("operations", "checks")).values())


def read(spread: Spread, journals: Sequence[str], folders: Sequence[str], work: str) -> dict[str, Source]:
    """Reads some folders of the journals.

    Args:
        folders: ``operations``, ``checks``, or both.
        work: a folder that all tasks see, which may be deleted when the pieces are not needed any more. The rejected rows are
            in ``work/rejected/FOLDER``.

    Raises:
        NoJournal: a journal has no folder ``operations``.
    """
    for _ in range(ATTEMPTS):
        listings = _listings(spread, journals, folders)
        large = [file for listing in listings.values() for file, bytes_ in listing.sizes.items() if bytes_ > BYTES]
        groups = dict(zip(large, spread(_files.groups_of, large), strict=True))
        portions = [
            Portion(folder, number, parts, work)
            for folder, listing in listings.items()
            for number, parts in enumerate(_files.parts(listing.sizes, groups, BYTES))
        ]
        admissions = spread(admitted, portions)
        # Somebody who compacts while files are listed may delete one that was not listed yet, and whose substitute was not.
        again = _listings(spread, journals, folders)
        is_same = all(set(filter(_files.is_compacted, again[name].sizes)) <= listings[name].sizes.keys() for name in folders)
        if is_same and not any(admission.has_vanished for admission in admissions):
            break
    else:
        raise NoJournal(f"cannot read {', '.join(journals)}: it was compacted while it was read, {ATTEMPTS} times")
    return {
        folder: _source(
            spread, folder, work, listing, [each for each, of in zip(admissions, portions, strict=True) if of.folder == folder]
        )
        for folder, listing in listings.items()
    }


def tallies(spread: Spread, journals: Sequence[str]) -> dict[str, int]:
    """How many operations have ended in each run that goes on, was killed, or could not write all of its rows."""
    found: dict[str, int] = {}
    for counted in spread(_files.tallies, _names(journals)):
        for run, count in counted.items():
            found[run] = max(count, found.get(run, 0))
    return found


def _names(journals: Sequence[str]) -> list[str]:
    """The journals, each once, as any process understands them."""
    return [*dict.fromkeys(name if "://" in name else os.path.abspath(name) for name in journals)]  # noqa: PTH100  (no URI)


def _listings(spread: Spread, journals: Sequence[str], folders: Sequence[str]) -> dict[str, Listing]:
    """The files of each folder, of all journals together."""
    names = _names(journals)
    places = [(name, folder) for folder in folders for name in names]
    found: dict[str, Listing] = {}
    for (name, folder), listing in zip(places, spread(listed, places), strict=True):
        if folder == "operations" and not listing.is_there:
            raise NoJournal(f"cannot read {name!r} as a journal: it has no folder 'operations'")
        found[folder] = found[folder] + listing if folder in found else listing
    return found


def _source(spread: Spread, folder: str, work: str, listing: Listing, admissions: list[Admission]) -> Source:
    damaged = dict(chain.from_iterable(admission.damaged.items() for admission in admissions))
    # Of a large file, whose row groups are in several pieces, one may be damaged: then none of it counts.
    whole = [admission for admission in admissions if not (admission.files & damaged.keys())]
    read_rows = sum(admission.rows for admission in whole)
    rejected: Counter[str] = Counter()
    for admission in whole:
        rejected.update(admission.rejected)
    for admission in admissions:
        if admission.rejected and admission not in whole:
            Path(admission.rejected_rows).unlink()
    pieces = [piece for admission in whole for piece in admission.pieces]
    numbers = [each for admission in whole for each in admission.numbers]
    accepted = read_rows - rejected.total()
    copies = 0
    suspects = overlapping(numbers)
    if suspects:
        count = max(1, sum(each.rows for each in numbers if each.piece in suspects) // 1_000_000)
        scatter = partial(scattered, count=count)
        places = spread(scatter, sorted(suspects))
        found = spread(merged, [(f"{work}/merged-{bucket}", [each[bucket] for each in places]) for bucket in range(count)])
        pieces = [piece for piece in pieces if piece not in suspects] + [piece for piece, _, _ in found]
        numbers = [each for each in numbers if each.piece not in suspects]
        numbers += [each for _, of_piece, _ in found for each in of_piece]
        copies = sum(dropped for _, _, dropped in found)
    account = [
        Account(folder, "files", None, len(listing.sizes)),
        *([Account(folder, "files compacted", "another file stands for them", listing.replaced)] if listing.replaced else []),
        *(Account(folder, "files unreadable", f"{file}: {damaged[file]}", 1) for file in sorted(damaged)),
        Account(folder, "rows read", None, read_rows),
        *(Account(folder, "rows rejected", reason, rejected[reason]) for reason in sorted(rejected)),
    ]
    if folder == "operations":
        account += accepted_or_copies(folder, accepted, copies)
    hours: dict[int, Hour] = {}
    for admission in whole:
        for hour, each in admission.hours.items():
            hours[hour] = hours[hour] + each if hour in hours else each
    return Source(pieces, numbers, hours, accepted - copies, account)


def accepted_or_copies(folder: str, rows: int, copies: int) -> list[Account]:
    """The last lines of the account of a folder, `rows` of which were not rejected."""
    return [
        Account(folder, "duplicates dropped", None, copies),
        Account(folder, "rows accepted", None, rows - copies),
    ]


def overlapping(numbers: Iterable[Numbers]) -> set[str]:
    """The pieces that may have copies: those with files whose numbers overlap, or repeat."""
    of_runs: dict[str, list[Numbers]] = defaultdict(list)
    for each in numbers:
        of_runs[each.run_id].append(each)
    suspects = set()
    for of_run in of_runs.values():
        of_run.sort(key=lambda each: (each.first, each.last))
        suspects |= {each.piece for each in of_run if each.repeats}
        furthest = None
        for each in of_run:
            if furthest is not None and each.first <= furthest.last:
                suspects |= {each.piece, furthest.piece}
            if furthest is None or each.last > furthest.last:
                furthest = each
    return suspects
