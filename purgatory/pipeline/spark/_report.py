"""The tables of a report, as DataFrames."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from purgatory.pipeline._reading import FILES, TALLIES, Account
from purgatory.pipeline._schemas import FOLDERS
from purgatory.pipeline.report._duckdb import DuckDB
from purgatory.pipeline.report._durations import step_of
from purgatory.pipeline.report._queries import REPORT
from purgatory.pipeline.spark._census import (
    HOUR,
    Census,
    Run,
    accepted,
    hours_of,
    judged,
    take_census,
)
from purgatory.pipeline.spark._curves import curves, waits
from purgatory.pipeline.spark._journal import Journal

WAIT: Final = "IF(started IS NOT NULL, greatest(till - since, 1), NULL)"
LATE: Final = (
    "IF(started IS NOT NULL AND outcome = 'expired' AND timeout_s IS NOT NULL, "
    "greatest(till - since - CAST(round(least(timeout_s * 1000000, 1e18)) AS BIGINT), 1), NULL)"
)
SHOWN_RUNS: Final = 8
"""The runs that a page can show by themselves."""
RUNS: Final = "run_id string, earliest bigint, latest bigint, run int"
CURVES: Final = pa.schema(
    [
        ("purgatory", pa.string()),
        ("kind", pa.string()),
        ("run", pa.int32()),
        ("timeout_s", pa.float64()),
        ("at_risk", pa.int64()),
        ("expiry_rate", pa.float64()),
        ("standard_error", pa.float64()),
    ]
)
ANSWERS: Final = pa.schema(
    [
        ("purgatory", pa.string()),
        ("kind", pa.string()),
        ("longest_wait_s", pa.float64()),
        ("least_expiry_rate", pa.float64()),
        ("its_standard_error", pa.float64()),
        ("one_percent", pa.float64()),
        ("one_per_mille", pa.float64()),
    ]
)
RUN_COUNTS: Final = pa.schema(
    [("run_id", pa.string()), ("ids", pa.int64()), ("operations", pa.int64())]
)
COUNTED: Final = pa.schema(
    [
        ("folder", pa.string()),
        ("reason", pa.string()),
        ("rows", pa.int64()),
        ("copies", pa.int64()),
    ]
)


class Report:
    """The tables about the operations of journals. `report` makes it.

    Each is a DataFrame, and reads the rows when it is used. Before the first one there is one pass
    over the rows, which looks for copies. `timeouts`, `survival` and `reconciliation` are small:
    asking for them computes them.
    """

    def __init__(
        self,
        operations: DataFrame,
        checks: DataFrame,
        censuses: dict[str, Census] | None = None,
        account: Account | None = None,
    ) -> None:
        self._session = operations.sparkSession
        self._rows = {
            "operations": judged(_checked(operations, "operations"), "operations"),
            "checks": judged(_checked(checks, "checks"), "checks"),
        }
        self._known = censuses
        self._account = account or Account(FILES.empty_table(), TALLIES.empty_table())

    @property
    def outcomes(self) -> DataFrame:
        """How operations ended, and how long they had waited, by purgatory, kind and minute."""
        keys = ("purgatory", "kind", "minute")
        ended = (
            self._spans.where("ended IS NOT NULL")
            .selectExpr(
                "purgatory",
                "kind",
                "till DIV 60000000 AS minute",
                "IF(started IS NOT NULL, till - since, NULL) AS wait",
                "outcome",
            )
            .groupBy(*keys, "wait")
            .agg(
                F.lit(0).cast("bigint").alias("started"),
                *(
                    F.expr(f"count_if(outcome = '{name}') AS {name}")
                    for name in ("completed", "expired", "cancelled")
                ),
                F.expr("count(*) AS n"),
            )
        )
        started = (
            self._spans.where("started IS NOT NULL")
            .selectExpr("purgatory", "kind", "since DIV 60000000 AS minute")
            .groupBy(*keys)
            .agg(F.expr("count(*) AS started"))
            .selectExpr(*keys, "CAST(NULL AS BIGINT) AS wait", "started")
            .selectExpr("*", *(f"0L AS {name}" for name in ("completed", "expired", "cancelled", "n")))
        )  # fmt: skip
        summed = (
            ended.unionByName(started)
            .groupBy(*keys)
            .agg(
                *(F.sum(name).alias(name) for name in ("started", "completed", "expired", "cancelled")),
                F.expr("percentile(wait, array(0.5D, 0.9D, 0.99D, 0.999D), n) AS p"),
                F.expr("max(wait) AS wait_max"),
            )
        )  # fmt: skip
        return summed.selectExpr(
            "purgatory",
            "kind",
            "timestamp_micros(minute * 60000000) AS minute",
            "started",
            "completed",
            "expired",
            "cancelled",
            "expired / nullif(completed + expired + cancelled, 0) AS expiry_rate",
            *(
                f"p[{place}] / 1000000 AS wait_{name}"
                for place, name in enumerate(("p50", "p90", "p99", "p999"))
            ),
            "wait_max / 1000000 AS wait_max",
        )

    @property
    def keys(self) -> DataFrame:
        """The number of operations that watched each key, and the results of its checks."""
        watched = self._spans.selectExpr(
            "purgatory",
            "explode(IF(size(keys) > 1, array_distinct(keys), keys)) AS key",
            "CAST(missed_trigger AS INT) AS missed",
        )
        zero = [f"0L AS {name}" for name in ("checks", "tried", "completed")]
        both = watched.selectExpr("purgatory", "key", "1L AS operations", *zero, "missed").unionAll(
            self._accepted_checks.selectExpr(
                "purgatory", "key", "0L", "checks", "tried", "completed", "0"
            )
        )
        return both.groupBy("purgatory", "key").agg(
            F.sum("operations").alias("operations"),
            F.sum("checks").alias("checks"),
            F.sum("tried").alias("tried"),
            F.sum("completed").alias("completed"),
            F.sum("missed").alias("missed_triggers"),
            F.expr("sum(tried) - sum(completed) AS false_wakeups"),
        )

    @property
    def pending(self) -> DataFrame:
        """How many operations were pending, by purgatory and second. Seconds without events share a
        row."""
        events = (
            "stack(2, since DIV 1000000, CAST(2 * (since % 1000000) AS INT), till DIV 1000000, "
            "CAST(2 * (till % 1000000) + 1 AS INT))"
        )
        change = "1 - 2 * (code & 1)"
        peak = (
            "aggregate(sort_array(codes), named_struct('now', 0, 'peak', CAST(NULL AS INT)), "
            f"(s, code) -> named_struct('now', s.now + {change}, 'peak', greatest(s.peak, s.now "
            f"+ {change}))).peak"
        )
        seconds = (
            self._spans.selectExpr("purgatory", f"{events} AS (second, code)")
            .groupBy("purgatory", "second")
            .agg(
                F.expr("collect_list(code) AS codes"),
                F.expr(f"sum({change}) AS change"),
                F.expr(f"sum(({change}) * (1000000 - (code DIV 2))) AS weight"),
            )
            .selectExpr("purgatory", "second", "change", "weight", f"{peak} AS peak")
            .selectExpr(
                "*",
                "lead(second) OVER (PARTITION BY purgatory ORDER BY second) AS next",
                "sum(change) OVER (PARTITION BY purgatory ORDER BY second ROWS BETWEEN "
                "UNBOUNDED PRECEDING AND CURRENT ROW) AS after",
            )
        )
        own = (
            "named_struct('second', timestamp_micros(second * 1000000), 'seconds', 1L, "
            "'pending_max', after - change + greatest(peak, 0), "
            "'pending_mean', CAST(after - change + weight / 1000000 AS DOUBLE))"
        )
        quiet = (
            "named_struct('second', timestamp_micros((second + 1) * 1000000), 'seconds', next - "
            "second - 1, "
            "'pending_max', after, 'pending_mean', CAST(after AS DOUBLE))"
        )
        both = f"IF(after > 0 AND next - second > 1, array({own}, {quiet}), array({own}))"
        return seconds.selectExpr("purgatory", f"inline({both})")

    @cached_property
    def timeouts(self) -> DataFrame:
        """What each purgatory and kind did with its timeouts, and which timeout would have let 1 %
        and 0.1 % expire. A few jobs."""
        return self._small("timeouts", "kinds", cube=self.cube(), answers=self._curves[1])

    @cached_property
    def survival(self) -> DataFrame:
        """What share each timeout would have let expire. A few jobs."""
        return self._small("survival", curves=self._curves[0])

    @cached_property
    def reconciliation(self) -> DataFrame:
        """The account of every file and every row. One pass over the rows."""
        files, tallies = self._account.files, self._account.tallies
        return self._small(
            "reconciliation", "by_folder", files=files, tallies=tallies, **self.counts()
        )

    # -- for the page, too

    @cached_property
    def runs(self) -> list[Run]:
        """All runs, the largest first."""
        census = self.census("operations")
        runs = census.runs
        if census.copies:
            found = self._accepted_operations.groupBy("run_id").agg(
                F.expr("max(operation_id) + 1 AS ids"),
                F.expr("count(*) AS operations"),
                F.expr("min(least(started, ended)) AS earliest"),
                F.expr("max(greatest(started, ended)) AS latest"),
            )
            runs = [Run(*row) for row in found.collect()]
        return sorted(runs, key=lambda run: (-run.operations, run.run_id))

    @property
    def shown_runs(self) -> list[str]:
        """The ids of the runs that have a number of their own."""
        return [run.run_id for run in self.runs[:SHOWN_RUNS]]

    @cached_property
    def hours(self) -> list[dict[str, Any]]:
        """What happened in each hour, in order."""
        census = self.census("operations")
        if not census.copies:
            return census.hours
        found = (
            self._accepted_operations.selectExpr("explode(array(started, ended)) AS instant")
            .where("instant IS NOT NULL")
            .groupBy(F.expr(f"instant DIV {HOUR} AS name"))
            .agg(
                F.expr("count(*) AS n"),
                F.expr("min(instant) AS first"),
                F.expr("max(instant) AS last"),
            )
        )
        return hours_of(found.collect())

    def census(self, folder: str) -> Census:
        """The result of the first pass."""
        return self._censuses[folder]

    def counts(self) -> dict[str, pa.Table]:
        """The tables `runs` and `counted` of ``rows.sql``."""
        counted = [
            (folder, reason, rows, self._copies(folder) if reason is None else 0)
            for folder in FOLDERS
            for reason, rows in self.census(folder).rows.items()
        ]
        runs = [(run.run_id, run.ids, run.operations) for run in self.runs]
        return {"runs": _table(runs, RUN_COUNTS), "counted": _table(counted, COUNTED)}

    def rejected(self, folder: str) -> DataFrame:
        """The rows that were rejected, with the reason and the file."""
        names = [field.name for field in FOLDERS[folder]]
        return self._rows[folder].where("reason IS NOT NULL").select(*names, "reason", "file")

    def cube(self, begun_in: str = "", ended_in: str = "") -> pa.Table:
        """The table `cube` of ``rows.sql``.

        Args:
            begun_in: the place of ``since``, as an expression. Without places there is a line for
                each purgatory, kind and outcome.
            ended_in: the place of ``till``.
        """
        spans = self._spans.selectExpr(
            "purgatory",
            "kind",
            f"{'run' if begun_in else 0} AS run",
            f"{begun_in or 0} AS begun_in",
            f"{ended_in or 0} AS ended_in",
            # one number to group by, in place of a text and three truths
            "CASE outcome WHEN 'completed' THEN 8 WHEN 'expired' THEN 16 WHEN 'cancelled' THEN "
            "24 ELSE 0 END"
            " + IF(missed_trigger, 4, 0) + IF(started IS NOT NULL, 2, 0) + IF(ended IS NOT "
            "NULL, 1, 0) AS flags",
            "timeout_s",
            *(f"{length} AS {name}" for name, length in (("wait", WAIT), ("late", LATE))),
        )
        for name in ("wait", "late") if begun_in else ():
            power = " + ".join(f"CAST({name} >= {10**power}L AS INT)" for power in range(1, 19))
            lead = f"({name} * 10) DIV CAST(power(10, power) AS BIGINT)"
            spans = spans.selectExpr("*", f"{power} AS power").selectExpr("*", f"{lead} AS lead")
            spans = spans.withColumn(f"{name}_step", F.expr(step_of("lead", "power")))
            spans = spans.drop("power", "lead")
        steps = ("wait_step", "late_step")
        if not begun_in:
            spans = spans.selectExpr("*", *(f"CAST(NULL AS INT) AS {name}" for name in steps))
        by = ("purgatory", "kind", "run", "begun_in", "ended_in", "flags", *steps)
        grouped = spans.groupBy(*by).agg(
            F.expr("count(*) AS operations"),
            F.expr("min(timeout_s) AS timeout_min_s"),
            F.expr("max(timeout_s) AS timeout_max_s"),
        )
        return grouped.selectExpr(
            *by[:5],
            "CASE flags DIV 8 WHEN 1 THEN 'completed' WHEN 2 THEN 'expired' WHEN 3 THEN "
            "'cancelled' END AS outcome",
            "flags & 4 > 0 AS missed_trigger",
            "flags & 2 > 0 AS has_start",
            "flags & 1 > 0 AS has_end",
            *steps,
            "operations",
            "timeout_min_s",
            "timeout_max_s",
        ).toArrow()

    def curves(self, *, by_run: bool = False) -> tuple[pa.Table, pa.Table]:
        """The tables `curves` and `answers` of ``rows.sql``."""
        counted = waits(self._spans, by_run=by_run).persist()
        try:
            points, answers = curves(counted)
        finally:
            counted.unpersist()
        return pa.Table.from_pylist(points, CURVES), pa.Table.from_pylist(answers, ANSWERS)

    @property
    def spans(self) -> DataFrame:
        """The operations, with the instants `since` and `till` between which they were pending."""
        return self._spans

    @property
    def accepted_checks(self) -> DataFrame:
        """The checks that count."""
        return self._accepted_checks

    # -- inside

    @cached_property
    def _censuses(self) -> dict[str, Census]:
        return self._known or {
            folder: take_census(rows, folder) for folder, rows in self._rows.items()
        }

    @cached_property
    def _accepted_operations(self) -> DataFrame:
        return accepted(self._rows["operations"], "operations", self.census("operations"))

    @cached_property
    def _accepted_checks(self) -> DataFrame:
        return accepted(self._rows["checks"], "checks", self.census("checks"))

    @cached_property
    def _spans(self) -> DataFrame:
        rows = [
            (run.run_id, run.earliest, run.latest, min(number, SHOWN_RUNS))
            for number, run in enumerate(self.runs)
        ]
        runs = self._session.createDataFrame(rows, RUNS)
        return self._accepted_operations.join(F.broadcast(runs), "run_id").selectExpr(
            "run_id",
            "run",
            "purgatory",
            "kind",
            "keys",
            "started",
            "ended",
            "timeout_s",
            "outcome",
            "missed_trigger",
            "coalesce(started, earliest) AS since",
            "coalesce(ended, latest) AS till",
        )

    @cached_property
    def _curves(self) -> tuple[pa.Table, pa.Table]:
        return self.curves()

    def _copies(self, folder: str) -> int:
        """The number of rows that are dropped as copies."""
        census = self.census(folder)
        if not census.copies:
            return 0
        if folder == "operations":
            kept = sum(run.operations for run in self.runs)
        else:
            kept = self._accepted_checks.count()
        return census.rows.get(None, 0) - kept

    def _small(self, name: str, *views: str, **tables: pa.Table) -> DataFrame:
        """A table that a query of ``report.sql`` makes of small tables, in this process."""
        with DuckDB.opened() as engine:
            for each, table in tables.items():
                engine.add(each, table)
            for query in REPORT:
                if query.name in views:
                    engine.run(query, "")
            [text] = [query.text for query in REPORT if query.name == name]
            return self._session.createDataFrame(engine.select(text))


def _table(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _checked(rows: DataFrame, folder: str) -> DataFrame:
    """The columns of the folder, and `file`."""
    found = {field.name: field.dataType for field in rows.schema}
    for field in FOLDERS[folder]:
        if field.name == "part" and "part" not in found:
            rows = rows.withColumn("part", F.lit(0).cast("bigint"))
        elif field.name not in found:
            raise ValueError(
                f"{folder} must have the columns of a journal: {field.name!r} is missing"
            )
        elif _plain(found[field.name]) != _plain(field.dataType):
            raise ValueError(
                f"{folder}: the column {field.name!r} must be {field.dataType.simpleString()}, "
                f"got {found[field.name].simpleString()}"
            )
    if "file" not in found:
        rows = rows.withColumn("file", F.lit(None).cast("string"))
    if folder == "checks":  # files of earlier versions have no part
        rows = rows.withColumn("part", F.coalesce("part", F.lit(0)))
    return rows.select(*(field.name for field in FOLDERS[folder]), "file")


def _plain(type_: Any) -> str:
    """The type, whether or not it may be null."""
    if isinstance(type_, ArrayType):
        return f"array<{_plain(type_.elementType)}>"
    return type_.simpleString() if not isinstance(type_, StructType) else "struct"


def report(operations: DataFrame, checks: DataFrame, journal: Journal | None = None) -> Report:
    """The tables about operations and checks.

    Args:
        operations: a DataFrame with the columns of a journal's operations: what `read_journal`
            returns, or any table. It is read once for the first pass and once for each table, so
            `persist` it if reading it is dear.
        checks: a DataFrame with the columns of a journal's checks.
        journal: what `read_journal` returned, if `operations` and `checks` are all its rows: then
            `reconciliation` also has its files, and the first pass is not done again.

    Raises:
        ValueError: a column is missing, or has another type.
    """
    if journal is None:
        return Report(operations, checks)
    return Report(operations, checks, journal.censuses, journal.account)
