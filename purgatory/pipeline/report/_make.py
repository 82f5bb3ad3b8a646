"""The tables of a report, and the proof that they account for every row.

    read      files of the journals -> pieces with the accepted rows              a task for each 16 MiB
    look      piece -> small sums, and columns of numbers divided into shards     a task for each piece
    add up    shard -> rows of the tables                                         a task for each million rows

Everything is computed anew from all journals each time. So after a journal has grown, a second run says what one run over all
of it would have said. What comes back to this process is limited to what a person can look at. The tables of an earlier report
are replaced when all new ones are there.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline import _pieces
from purgatory.pipeline._executor import Executor
from purgatory.pipeline._reading import Account, Source, accepted_and_duplicates, read, run_counters
from purgatory.pipeline._rows import TYPES
from purgatory.pipeline.report import _durations, _keys, _outcomes, _overview, _pending, _survival
from purgatory.pipeline.report._exchange import Segment, Segments, found, leave
from purgatory.pipeline.report._operations import load
from purgatory.pipeline.report._plan import Plan
from purgatory.pipeline.report._summary import Shard, Summary, summary_of, timeouts_of
from purgatory.pipeline.report._window import shown_runs, window_of

STEPS = 4
"""How often `make_tables` says what it does next."""
TABLES = ("outcomes", "keys", "pending", "survival", "timeouts", "reconciliation")
ROWS_OF_SHARD = 1_000_000
MOST_SHARDS = 64
RECONCILIATION = pa.schema(
    [("place", pa.int32()), ("folder", pa.string()), ("what", pa.string()), ("reason", pa.string()), ("count", pa.int64())]
)


class DoesNotAddUp(Exception):
    """This package has a defect: the tables do not account for every row."""


@dataclass(slots=True)
class Look:
    """What a task found in a piece."""

    left: Segments
    sums: dict[str, pa.Table] = field(default_factory=dict)


def make_tables(executor: Executor, journals: Sequence[str], out: str, step: Callable[[str], None] = lambda _: None) -> Summary:
    """Writes all tables to ``out/tables``, and the rows that were rejected to ``out/rejected``.

    Args:
        executor: does the tasks.
        out: a folder that all tasks see. What an earlier report left there is replaced at the end.
        step: is told what is done next, `STEPS` times.

    Returns:
        What a person can look at.

    Raises:
        NoJournal: one of the journals does not exist.
        OSError: `out` cannot be written to, or what would be replaced there is not of a report.
        DoesNotAddUp: this package has a defect.
    """
    work = Path(out, ".work").absolute()
    shutil.rmtree(work, ignore_errors=True)  # of a report that was killed
    _check_place(out)
    try:
        try:
            (work / "tables").mkdir(parents=True)
        except OSError as error:
            raise OSError(f"cannot write to {out!r}: {error.strerror}") from error
        summary = _made(executor, journals, str(work), step)
        for name in ("tables", "rejected"):
            shutil.rmtree(Path(out, name), ignore_errors=True)
            (work / name).rename(Path(out, name))
        return summary
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check_place(out: str) -> None:
    """Makes sure that nothing is deleted but tables and rejected rows of an earlier report."""
    for folder, names in (("tables", TABLES), ("rejected", tuple(TYPES))):
        place = Path(out, folder)
        for path in place.iterdir() if place.is_dir() else ():
            if path.name not in names:
                raise OSError(f"cannot write to {out!r}: {path.name!r} in its folder {folder!r} is not of a report")


def _made(executor: Executor, journals: Sequence[str], work: str, step: Callable[[str], None]) -> Summary:
    step("reading")
    sources = read(executor, journals, list(TYPES), work)
    operations, checks = sources["operations"], sources["checks"]
    counted = run_counters(executor, journals)
    for folder in TYPES:
        _pieces.ensure_rejected_table(work, folder)
    plan = _plan(operations, work)
    step("looking at all rows")
    pieces = [(folder, piece) for folder, source in sources.items() for piece in source.pieces]
    looks = executor(partial(look, plan=plan), pieces)
    sums: dict[str, list[pa.Table]] = {}
    for each in looks:
        for name, table in each.sums.items():
            sums.setdefault(name, []).append(table)
    base, quiet = _pending.bases(sums["changes"]) if sums else ({}, _pending.SCHEMA.empty_table())
    step("adding up")
    shards = executor(partial(add_up, plan=plan), _tasks(plan, [each.left for each in looks], base))
    step("the last tables")
    write(work, "pending", "quiet", quiet)
    timeouts = timeouts_of(sums, shards)
    write(work, "timeouts", "all", timeouts)
    points = [table for shard in shards for table in shard.survival.points]
    survival = pa.concat_tables([_survival.SCHEMA.empty_table(), *points])
    write(work, "survival", "all", survival)
    copies = sum(shard.keys.copies for shard in shards)
    account = [
        *operations.account,
        *_missing_ids(operations, counted),
        *checks.account,
        *accepted_and_duplicates("checks", checks.rows, copies),
    ]
    _check_balance(account, shards, timeouts, sums)
    lines = [(place, *astuple(each)) for place, each in enumerate(account)]
    columns = dict(zip(RECONCILIATION.names, zip(*lines, strict=True), strict=True))
    write(work, "reconciliation", "all", pa.table({name: list(values) for name, values in columns.items()}, RECONCILIATION))
    return summary_of(plan, sums, shards, timeouts, survival, quiet, account)


def _plan(operations: Source, work: str) -> Plan:
    bounds: dict[str, tuple[int, int]] = {}
    for each in operations.run_stats:
        first, last = bounds.get(each.run_id, (each.earliest, each.latest))
        bounds[each.run_id] = (min(first, each.earliest), max(last, each.latest))
    shards = min(max(operations.rows // ROWS_OF_SHARD, 1), MOST_SHARDS)
    return Plan(work, f"{work}/tables", shards, bounds, shown_runs(operations.run_stats), window_of(operations.hours))


def _tasks(plan: Plan, left: list[Segments], base: dict[tuple[str, int], int]) -> list["Task"]:
    """The work after the exchange, one task for each shard."""
    tasks: list[Task] = [(number, {}, {}) for number in range(plan.shards)]
    for segments in left:
        for name, by_shard in segments.items():
            for number, segment in by_shard.items():
                tasks[number][1].setdefault(name, []).append(segment)
    for (purgatory, minute), pending in base.items():
        tasks[_pending.shard(purgatory, minute) % plan.shards][2][purgatory, minute] = pending
    return tasks


Task = tuple[int, dict[str, list[Segment]], dict[tuple[str, int], int]]
"""The number of a shard, what was left for it, and what was pending when each of its minutes began."""


# -- the tasks


def look(task: tuple[str, str], plan: Plan) -> Look:
    """Divides what is known of a piece, and adds up what stays small.

    Args:
        task: the folder of which the piece is, and its name.
    """
    folder, piece = task
    if folder == "checks":
        return Look(leave(f"{piece}.left", _keys.checks_left(piece), plan.shards))
    operations = load(piece, plan)
    left = {
        "ends": _outcomes.outcomes_left(operations),
        "waits": _survival.waits_left(operations),
        "events": _pending.events_left(operations),
        **_keys.watchers_left(operations, plan.window),
    }
    sums = {
        "kinds": _overview.kinds(operations),
        "changes": _pending.changes(operations),
        "timeline": _overview.timeline(operations, plan),
        "waits": _durations.waits(operations, plan),
        "lateness": _durations.lateness(operations, plan),
    }
    return Look(leave(f"{piece}.left", left, plan.shards), sums)


def add_up(task: Task, plan: Plan) -> Shard:
    """Writes the rows of the tables that belong to a shard."""
    number, segments, base = task
    left = {name: found(each) for name, each in segments.items()}
    outcomes = _outcomes.outcomes(left.get("ends", []))
    pending = _pending.pending(left.get("events", []), base)
    keys = _keys.keys(left.get("watching", []), left.get("missed", []), left.get("checks", []), plan.window)
    for name, rows in (("outcomes", outcomes), ("pending", pending), ("keys", keys.rows)):
        write(plan.work, name, f"{number:05}", rows)
    return Shard(
        worst=_outcomes.worst(outcomes),
        keys=replace(keys, rows=_keys.SCHEMA.empty_table()),
        survival=_survival.survival(left.get("waits", [])),
        points=_pending.points(pending, plan.window),
        peaks=_pending.peaks(pending),
        counted={
            "ends": sum(int(np.sum(outcomes[name].to_numpy())) for name in ("completed", "expired", "cancelled")),
            "starts": int(np.sum(outcomes["started"].to_numpy())),
            "tried": int(np.sum(keys.rows["tried"].to_numpy())),
        },
    )


def write(work: str, name: str, part: str, rows: pa.Table) -> None:
    """Writes a part of a table, whole or not at all: a task may be done twice."""
    folder = Path(work, "tables", name)
    folder.mkdir(parents=True, exist_ok=True)
    partial_file = folder / f".{part}.partial"
    pq.write_table(rows, partial_file)
    partial_file.rename(folder / f"part-{part}.parquet")


# -- the proof


def _missing_ids(operations: Source, counted: dict[str, int]) -> list[Account]:
    """How many operations a journal has numbered or counted but does not contain, because it dropped or lost them."""
    ids: dict[str, int] = {}
    for each in operations.run_stats:
        ids[each.run_id] = max(ids.get(each.run_id, 0), each.last + 1)
    last = sum(max(ended - ids.get(run, 0), 0) for run, ended in counted.items())
    gaps = sum(ids.values()) - operations.rows
    return [
        Account("operations", "ids missing", "dropped, lost, rejected, unreadable or too old to keep", gaps),
        Account("operations", "ids missing", "the last of a run that was killed, or that goes on", last),
    ]


def _check_balance(account: list[Account], shards: list[Shard], timeouts: pa.Table, sums: dict[str, list[pa.Table]]) -> None:
    """Makes sure that the counts of all tables add up to the rows that were read."""

    def total(name: str) -> int:
        return int(np.sum(timeouts[name].to_numpy()))

    def counted(folder: str, what: str) -> int:
        return sum(each.count for each in account if (each.folder, each.what) == (folder, what))

    def of_shards(name: str) -> int:
        return sum(shard.counted[name] for shard in shards)

    accepted = counted("operations", "rows accepted")
    sides = {
        "rows of timeouts": (total("operations"), accepted),
        "ends in outcomes": (of_shards("ends") + total("without_end"), accepted),
        "starts in outcomes": (of_shards("starts") + total("without_start"), accepted),
        "operations in survival": (sum(shard.survival.operations for shard in shards) + total("without_start"), accepted),
        "changes of pending": (sum(int(np.sum(each["change"].to_numpy())) for each in sums.get("changes", [])), 0),
        "tries in keys": (of_shards("tried"), sum(shard.keys.tried for shard in shards)),
        **{
            f"{folder} read": (
                sum(counted(folder, what) for what in ("rows accepted", "duplicates dropped", "rows rejected")),
                counted(folder, "rows read"),
            )
            for folder in ("operations", "checks")
        },
    }
    for what, (is_, should_be) in sides.items():
        if is_ != should_be:
            raise DoesNotAddUp(f"{what}: {is_:,}, which should be {should_be:,}; this is a defect of the report")
