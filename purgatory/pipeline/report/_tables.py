"""Makes the tables of a report, on either engine.

Everything is computed anew from all journals each time. So after a journal has grown, a second run
gives the tables that one run over all of it would have given. The tables of an earlier report are
replaced when all new ones are there.
"""

from collections.abc import Sequence

from purgatory.pipeline._files import Storage, distinct
from purgatory.pipeline._snapshot import Snapshot, read_whole
from purgatory.pipeline.report._queries import REJECTED, REPORT, TABLES, Engine, Line, Step, Summary


class ReconciliationError(Exception):
    """This package has a defect: the tables do not account for every row."""


def make_tables(
    engine: Engine,
    journals: Sequence[str],
    out: str,
    step: Step = lambda _: None,
    snapshot: Snapshot | None = None,
) -> Summary:
    """Writes all tables to ``out/tables``, and the rejected rows to ``out/rejected``.

    Args:
        engine: computes the tables.
        journals: paths or URIs that the engine reaches.
        out: a folder, or a URI. An earlier report there is replaced at the end.
        step: shows the next step.
        snapshot: the files of the journals, if they are listed already.

    Returns:
        The data of the page.

    Raises:
        NoJournal: one of the journals does not exist.
        OSError: `out` cannot be written to, or has something that is not of a report.
        ReconciliationError: this package has a defect.
    """
    [out], names = distinct([out]), distinct(journals)
    snapshot = snapshot or Snapshot.of(engine.storage, names)  # before anything is made
    storage, work = engine.storage(out), f"{out}/.work"
    _require_place(storage, out)

    def summary_of(files: Snapshot) -> Summary:
        storage.delete(work)  # of a killed report, or of a journal since compacted
        try:
            storage.make(work)
        except OSError as error:
            raise OSError(f"cannot write to {out!r}: {error.strerror or error}") from error
        return _summary(engine, files, work, step)

    try:
        summary = read_whole(engine.storage, names, summary_of, snapshot)
        for folder in ("tables", "rejected"):
            storage.delete(f"{out}/{folder}")
            storage.move(f"{work}/{folder}", f"{out}/{folder}")
        return summary
    finally:
        storage.delete(work)


def _require_place(storage: Storage, out: str) -> None:
    """Makes sure that only tables and rejected rows of an earlier report are deleted."""
    for folder, ours in (
        ("tables", TABLES),
        ("rejected", [name.removeprefix("rejected_") for name in REJECTED]),
    ):
        for name in storage.names(f"{out}/{folder}"):
            if name not in ours:
                raise OSError(
                    f"cannot write to {out!r}: {name!r} in its folder {folder!r} is not of a report"
                )


def _summary(engine: Engine, snapshot: Snapshot, work: str, step: Step) -> Summary:
    """Reads the journals, writes all tables, and returns the content of the page."""
    step("reading")
    damaged = engine.read(snapshot)
    lines, page = engine.sums(work, step)
    engine.add("files", snapshot.files(damaged))
    engine.add("tallies", snapshot.tallies())
    for query in REPORT:
        step(query.name.replace("_", " "))
        lines[query.name] = engine.run(query.with_numbers(page.numbers), work)
        if query.name == "balance_of_all":
            _require_balance(lines["balance_of_all"])
    return Summary(lines, page)


def _require_balance(lines: list[Line]) -> None:
    for line in lines:
        if (line["found"] or 0) != (line["expected"] or 0):
            raise ReconciliationError(
                f"{line['what']}: expected {line['expected']:,}, found {line['found']:,}; this "
                "is a defect of the report"
            )
