"""Makes a report on Spark, on this machine or on a cluster."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from purgatory.pipeline._session import literal
from purgatory.pipeline._snapshot import Snapshot
from purgatory.pipeline.report._duckdb import DuckDB
from purgatory.pipeline.report._queries import ROWS, Line, Page, Query, Step
from purgatory.pipeline.spark._journal import Reader, vanishing
from purgatory.pipeline.spark._sums import Sums, frame_of

SIDE_BY_SIDE: Final = 3
"""The tables that are computed at the same time: the last tasks of one leave cores to the next.
Through Spark Connect one: there a name that two queries use lasts for the first to end."""
WRITTEN: Final = [query for query in ROWS if query.role in ("write", "reject")]
SMALL: Final = [query for query in ROWS if query.role == "small"]
SHOWN: Final = [query for query in ROWS if query.role == "show"]
OF_WRITTEN: Final = ("hot_keys", "missed_keys", "balance")
"""Small tables of the tables that are written."""
SUMS: Final = ("cube", "limits", "curves")
"""Small tables of the rows, after the first pass."""


class Spark(Reader):
    """An `Engine`. See `on`."""

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

    def read(self, snapshot: Snapshot) -> dict[str, str]:
        self.close()
        self._journal = self.journal(snapshot)
        return self._journal.damaged

    def sums(self, work: str, step: Step) -> tuple[dict[str, list[Line]], Page]:
        with vanishing():
            return self._sums(work, step)

    def add(self, name: str, table: pa.Table) -> None:
        self._small.add(name, table)

    def run(self, query: Query, work: str) -> list[Line]:
        if query.role != "write":
            return self._small.run(query, work)
        self._small.run(Query("keep", query.name, query.text), work)
        table = self._small.select(f'SELECT * FROM "{query.name}"')
        frame_of(self._session, table).coalesce(1).write.parquet(f"{work}/{query.place}")
        return []

    def _sums(self, work: str, step: Step) -> tuple[dict[str, list[Line]], Page]:
        rows = {"operations": self._journal.operations, "checks": self._journal.checks}
        made = Sums(rows, self._journal.known)

        def write(query: Query) -> None:
            frame, place = made.frame(query.name), f"{work}/{query.place}"
            frame.write.parquet(place)
            made.replace(
                query.name, self._session.read.schema(frame.schema).parquet(literal(place))
            )

        def collected(query: Query) -> list[Line]:
            lines: list[Line] = made.small(query.name).to_pylist()
            return lines

        step("tables")
        self._side_by_side(
            [partial(write, query) for query in WRITTEN]
            + [partial(made.small, name) for name in SUMS]
        )
        step("lines of the page")
        self._side_by_side([partial(made.small, name) for name in OF_WRITTEN])
        lines = self._side_by_side([partial(collected, query) for query in SHOWN])
        for query in SMALL:
            self.add(query.name, made.small(query.name))
        return dict(zip([query.name for query in SHOWN], lines, strict=True)), made.page

    def _side_by_side(self, jobs: Iterable[Callable[[], Any]]) -> list[Any]:
        is_classic = isinstance(self._session, SparkSession)
        with ThreadPoolExecutor(SIDE_BY_SIDE if is_classic else 1) as pool:
            futures = [pool.submit(job) for job in jobs]
            return [future.result() for future in futures]
