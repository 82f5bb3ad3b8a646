"""Makes a report on Spark, on this machine or on a cluster."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.pipeline._files import Vanished
from purgatory.pipeline._schemas import FOLDERS
from purgatory.pipeline._session import literal
from purgatory.pipeline.report._duckdb import DuckDB
from purgatory.pipeline.report._queries import ROWS, Line, Query, Shown, Step
from purgatory.pipeline.report._window import Window, page_tables, window_of
from purgatory.pipeline.spark._journal import GONE, SparkSource
from purgatory.pipeline.spark._report import Report

SIDE_BY_SIDE: Final = 3
"""The tables that are computed at the same time: the last tasks of one leave cores to the next."""
KEYS: Final = 100
"""The keys that the page shows."""
WRITTEN: Final = ("outcomes", "keys", "pending")


class Spark(SparkSource):
    """An `Engine`. See `on`."""

    steps = 2

    def __init__(self, session: SparkSession, small: DuckDB) -> None:
        super().__init__(session, keeps_small_files=True)
        self._session = session
        self._small = small

    @classmethod
    @contextmanager
    def on(cls, session: SparkSession) -> Iterator["Spark"]:
        """An engine, on a session that is the caller's."""
        with DuckDB.opened() as small:
            engine = cls(session, small)
            try:
                yield engine
            finally:
                engine.close()

    def sums(self, work: str, step: Step) -> Shown:
        try:
            return self._sums(work, step)
        except (PySparkException, Py4JJavaError) as error:
            if any(word in str(error) for word in GONE):
                raise Vanished(work) from error
            raise

    def add(self, name: str, table: pa.Table) -> None:
        self._small.add(name, table)

    def run(self, query: Query, work: str) -> list[Line]:
        if query.role != "write":
            return self._small.run(query, work)
        self._small.run(Query("keep", query.name, query.text), work)
        table = self._small.select(f'SELECT * FROM "{query.name}"')
        self._session.createDataFrame(table).coalesce(1).write.parquet(f"{work}/{query.place}")
        return []

    def _sums(self, work: str, step: Step) -> Shown:
        made = Report(self.rows["operations"], self.rows["checks"], self.censuses)
        window, runs = window_of(made.hours), made.shown_runs
        places = {query.name: f"{work}/{query.place}" for query in ROWS}
        rejected = {f"rejected_{folder}": made.rejected(folder) for folder in FOLDERS}
        tables = {name: getattr(made, name) for name in WRITTEN} | rejected
        step("tables")
        found = _side_by_side(
            {
                "cube": partial(_cube, made, window),
                "curves": partial(made.curves, by_run=len(runs) > 1),
                **{
                    name: partial(self._write, frame, places[name])
                    for name, frame in tables.items()
                },
            }
        )
        step("lines of the page")
        written = {name: found[name] for name in WRITTEN}
        shown = _side_by_side(
            {
                "hot": partial(_hot, made, written["keys"], window),
                "missed": partial(_missed, made, written["keys"], window),
                "pending": partial(_pending, written["pending"], window),
                "minutes": partial(_minutes, written["outcomes"]),
                "balance": partial(_balance, made, written),
            }
        )
        curves, answers = found["curves"]
        small = {
            **page_tables(window, runs),
            **made.counts(),
            "cube": found["cube"],
            "curves": curves,
            "answers": answers,
            "balance": shown.pop("balance"),
        }
        for name, table in small.items():
            self.add(name, table)
        return Shown(
            {name: lines for some in shown.values() for name, lines in some.items()}, window, runs
        )

    def _write(self, frame: DataFrame, place: str) -> DataFrame:
        frame.write.parquet(place)
        return self._session.read.schema(frame.schema).parquet(literal(place))


def _side_by_side(jobs: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        futures = {name: pool.submit(job) for name, job in jobs.items()}
        return {name: future.result() for name, future in futures.items()}


def _place(instant: str, window: Window) -> str:
    """The number of the span of the page's time, as an expression."""
    return f"CASE WHEN {instant} < {window.start} THEN -1 ELSE {_span(instant, window)} END"


def _span(instant: str, window: Window) -> str:
    span = f"({instant} - {window.start}) DIV {window.width}"
    return f"CAST(least({span}, {window.count}) AS INT)"


def _cube(made: Report, window: Window) -> pa.Table:
    return made.cube(_place("since", window), _place("till", window))


def _lines(frame: DataFrame) -> list[Line]:
    lines: list[Line] = frame.toArrow().to_pylist()
    return lines


def _hot(made: Report, keys: DataFrame, window: Window) -> dict[str, list[Line]]:
    order = (F.desc("tried"), F.desc("operations"), "purgatory", "key")
    hot = _lines(keys.where("tried > 0").orderBy(*order).limit(KEYS))
    if not hot:
        return {"hot_keys_in_order": [], "hot_times": []}
    # Checks are counted by the second, so the first span may begin within one.
    place = (
        f"CASE WHEN instant + 1000000 <= {window.start} THEN -1 "
        f"ELSE greatest({_span('instant', window)}, 0) END"
    )
    times = (
        made.accepted_checks.join(_names(keys, hot), ["purgatory", "key"])
        .withColumn("place", F.expr(place))
        .groupBy("purgatory", "key", "place")
        .agg(F.sum("tried").alias("tried"), F.sum("completed").alias("completed"))
        .orderBy("purgatory", "key", "place")
    )
    return {"hot_keys_in_order": hot, "hot_times": _lines(times)}


def _missed(made: Report, keys: DataFrame, window: Window) -> dict[str, list[Line]]:
    order = (F.desc("missed_triggers"), "purgatory", "key")
    missed = _lines(keys.where("missed_triggers > 0").orderBy(*order).limit(KEYS))
    if not missed:
        return {"missed_keys_in_order": [], "missed_times": []}
    times = (
        made.spans.where("missed_trigger")
        .selectExpr(
            "purgatory",
            "explode(array_distinct(keys)) AS key",
            f"{_place('till', window)} AS place",
        )
        .join(_names(keys, missed), ["purgatory", "key"])
        .groupBy("purgatory", "key", "place")
        .agg(F.expr("count(*) AS missed"))
        .orderBy("purgatory", "key", "place")
    )
    return {"missed_keys_in_order": missed, "missed_times": _lines(times)}


def _names(keys: DataFrame, lines: list[Line]) -> DataFrame:
    rows = [(line["purgatory"], line["key"]) for line in lines]
    return F.broadcast(keys.sparkSession.createDataFrame(rows, "purgatory string, key string"))


def _pending(pending: DataFrame, window: Window) -> dict[str, list[Line]]:
    """The maximum of pending operations of each purgatory, and the number pending in each span."""
    start, width, count = window.start, window.width, window.count
    most = pending.groupBy("purgatory").agg(
        F.max(F.struct("pending_max", -F.unix_micros("second"))).alias("most")
    )
    peaks = most.selectExpr(
        "purgatory", "timestamp_micros(-most.col2) AS second", "most.pending_max"
    ).orderBy("purgatory")
    area = (
        f"pending_mean * (least(ends, {start} + (place + 1) * {width}) - greatest(since, "
        f"{start} + place * {width})) / 1000000"
    )
    points = (
        pending.selectExpr(
            "*", "unix_micros(second) AS since", "unix_micros(second) + seconds * 1000000 AS ends"
        )
        .where(f"ends > {start} AND since < {start + width * count} AND pending_max > 0")
        .selectExpr(
            "*",
            f"explode(sequence(greatest((since - {start}) DIV {width}, 0), least((ends - 1 - "
            f"{start}) DIV {width}, {count - 1}))) AS place",
        )
        .groupBy("purgatory", "place")
        .agg(F.max("pending_max").alias("most"), F.expr(f"sum({area}) AS area"))
        .orderBy("purgatory", "place")
    )
    return {"peaks": _lines(peaks), "points": _lines(points)}


def _minutes(outcomes: DataFrame) -> dict[str, list[Line]]:
    order = (F.desc("expired"), "minute", "purgatory", "kind")
    return {"worst_minutes": _lines(outcomes.orderBy(*order).limit(50))}


def _balance(made: Report, written: dict[str, DataFrame]) -> pa.Table:
    """Sums that have to be equal, or the report has a defect."""
    [events] = (
        written["outcomes"].selectExpr("sum(started + completed + expired + cancelled)").collect()
    )
    [tries] = written["keys"].selectExpr("sum(tried)").collect()
    [checks] = made.accepted_checks.selectExpr("sum(tried)").collect()
    return pa.table(
        {
            "what": ["events in outcomes", "tries in keys"],
            "found": pa.array([events[0], tries[0]], pa.int64()),
            "expected": pa.array(
                [sum(hour["events"] for hour in made.hours), checks[0]], pa.int64()
            ),
        }
    )
