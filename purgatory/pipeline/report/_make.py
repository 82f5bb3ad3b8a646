"""Makes the tables of a report: an engine runs the queries of ``report.sql``, one after the other.

Everything is computed anew from all journals each time. So after a journal has grown, a second run says what one run over all
of it would have said. The tables of an earlier report are replaced when all new ones are there.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Final

import pyarrow as pa

from purgatory.journal import FOLDERS
from purgatory.pipeline._errors import NoJournal
from purgatory.pipeline._files import Listing, Storage, Vanished, distinct, is_compacted, list_files, run_counters
from purgatory.pipeline.report._queries import QUERIES, REJECTED, TABLES, Engine, Line
from purgatory.pipeline.report._summary import Summary
from purgatory.pipeline.report._window import window_of

STEPS: Final = len(QUERIES) + 1
"""How often `make_tables` says what it does next."""
ATTEMPTS: Final = 5
"""At reading a journal while it is compacted."""
FILES: Final = pa.schema([("folder", pa.string()), ("file", pa.string()), ("damage", pa.string()), ("is_replaced", pa.bool_())])
TALLIES: Final = pa.schema([("run_id", pa.string()), ("ended", pa.int64())])
PAGE: Final = pa.schema([(name, pa.int64()) for name in ("start", "width", "count", "runs")])
SHOWN_RUNS: Final = pa.schema([("run_id", pa.string()), ("run", pa.int32())])
FOLDERS_OF: Final = {"write": "tables", "reject": "rejected"}


class ReconciliationError(Exception):
    """This package has a defect: the tables do not account for every row."""


def make_tables(engine: Engine, journals: Sequence[str], out: str, step: Callable[[str], None] = lambda _: None) -> Summary:
    """Writes all tables to ``out/tables``, and the rows that were rejected to ``out/rejected``.

    Args:
        engine: runs the queries.
        journals: paths or URIs that the engine reaches.
        out: a folder, or a URI. What an earlier report left there is replaced at the end.
        step: is told what is done next, `STEPS` times.

    Returns:
        What a person can look at.

    Raises:
        NoJournal: one of the journals does not exist.
        OSError: `out` cannot be written to, or what would be replaced there is not of a report.
        ReconciliationError: this package has a defect.
    """
    [out], names = distinct([out]), distinct(journals)
    for name in names:
        list_files(engine.storage(name), name, "operations")  # it is there: before anything is made
    storage, work = engine.storage(out), f"{out}/.work"
    storage.delete(work)  # of a report that was killed
    _check_place(storage, out)
    try:
        try:
            storage.make(work)
        except OSError as error:
            raise OSError(f"cannot write to {out!r}: {error.strerror or error}") from error
        for folder in FOLDERS_OF.values():
            storage.make(f"{work}/{folder}")
        step("reading")
        read_journals(engine, names, [*FOLDERS])
        engine.add("tallies", _tallies(engine, names))
        summary = _summary(engine, work, step)
        for folder in FOLDERS_OF.values():
            storage.delete(f"{out}/{folder}")
            storage.move(f"{work}/{folder}", f"{out}/{folder}")
        return summary
    finally:
        storage.delete(work)


def _check_place(storage: Storage, out: str) -> None:
    """Makes sure that nothing is deleted but tables and rejected rows of an earlier report."""
    for folder, ours in (("tables", TABLES), ("rejected", [name.removeprefix("rejected_") for name in REJECTED])):
        for name in storage.names(f"{out}/{folder}"):
            if name not in ours:
                raise OSError(f"cannot write to {out!r}: {name!r} in its folder {folder!r} is not of a report")


def read_journals(engine: Engine, journals: list[str], folders: Sequence[str]) -> dict[str, dict[str, str]]:
    """Makes all rows of some folders of journals tables of the engine, each row once, even while they are compacted.

    Makes the table `files`, too.

    Returns:
        For each folder the reason for each file that cannot be read.

    Raises:
        NoJournal: a journal has no folder ``operations``, or is compacted all the time.
    """
    for _ in range(ATTEMPTS):
        found = {folder: {name: _listing(engine, name, folder) for name in journals} for folder in folders}
        try:
            damaged = {folder: engine.read(folder, listings) for folder, listings in found.items()}
        except Vanished:
            continue
        # A compaction may delete a file before it is listed, and write the file that replaces it after that folder was listed.
        if all(
            set(filter(is_compacted, list_files(engine.storage(name), name, folder))) <= found[folder][name].sizes.keys()
            for folder in folders
            for name in journals
        ):
            break
    else:
        raise NoJournal(f"cannot read {', '.join(journals)}: it was compacted while it was read, {ATTEMPTS} times")
    lines = [
        {"folder": folder, "file": file, "damage": damaged[folder].get(file), "is_replaced": file in listing.replaced}
        for folder, listings in found.items()
        for listing in listings.values()
        for file in (*listing.sizes, *listing.replaced)
    ]
    engine.add("files", pa.Table.from_pylist(lines, FILES))
    return damaged


def _tallies(engine: Engine, journals: list[str]) -> pa.Table:
    counted: dict[str, int] = {}
    for name in journals:
        for run, ended in run_counters(engine.storage(name), name).items():
            counted[run] = max(ended, counted.get(run, 0))
    return pa.table({"run_id": [*counted], "ended": [*counted.values()]}, TALLIES)


def _listing(engine: Engine, journal: str, folder: str) -> Listing:
    sizes = list_files(engine.storage(journal), journal, folder)
    replaced = engine.replaced_by([file for file in sizes if is_compacted(file)]) & sizes.keys()
    return Listing({file: size for file, size in sizes.items() if file not in replaced}, frozenset(replaced))


def _summary(engine: Engine, work: str, step: Callable[[str], None]) -> Summary:
    """Runs the queries, and returns what they show."""
    shown: dict[str, list[Line]] = {}
    window, runs = window_of([]), list[str]()
    for query in QUERIES:
        step(query.name.replace("_", " "))
        folder = FOLDERS_OF.get(query.role, "")
        shown[query.name] = engine.run(query, f"{work}/{folder}/{query.name.removeprefix('rejected_')}")
        if query.name == "balance":
            _check_balance(shown["balance"])
        if query.name == "largest_runs":
            window = window_of(shown["hours"])
            runs = [line["run_id"] for line in shown["largest_runs"]]
            page = {"start": window.start, "width": window.width, "count": window.count, "runs": len(runs)}
            engine.add("page", pa.Table.from_pylist([page], PAGE))
            engine.add("shown_runs", pa.table({"run_id": runs, "run": [*range(len(runs))]}, SHOWN_RUNS))
    others = {field.name: shown[field.name] for field in fields(Summary) if field.name not in ("runs", "window")}
    return Summary(**others, runs=runs, window=window)


def _check_balance(lines: list[Line]) -> None:
    for line in lines:
        if (line["found"] or 0) != (line["expected"] or 0):
            raise ReconciliationError(
                f"{line['what']}: {line['found']:,}, which should be {line['expected']:,}; this is a defect of the report"
            )
