"""The queries of ``rows.sql`` on Spark, where each is a DataFrame, and of ``report.sql`` on DuckDB.

`SparkSession.sql` runs a query on named DataFrames, so that no view is left. Rows are read anew by
each query. Small tables are collected; the sums that several of them need are kept meanwhile.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline.report._duckdb import DuckDB
from purgatory.pipeline.report._queries import (
    CENSUSES,
    ON_SPARK,
    REPORT,
    ROWS,
    Page,
    Query,
    numbers_in,
    on_spark,
)

QUERIES: Final = {query.name: query for query in (*ROWS, *REPORT)} | ON_SPARK
GIVEN: Final = ("operations", "checks", "files", "tallies")
SOURCE: Final = re.compile(rf"\b(FROM|JOIN)(\s+)({'|'.join([*GIVEN, *QUERIES])})\b")
"""Where the text of a query names another, or a given table."""


def _sources(query: Query) -> set[str]:
    return {found[3] for found in SOURCE.finditer(query.text)}


FEW: Final = {query.name for query in REPORT} | {
    query.name
    for query in ROWS
    if query.role in ("small", "show")
    and all(name in QUERIES and QUERIES[name].role == "small" for name in _sources(query))
}
"""The queries of small tables alone."""
FIRST_PASS: Final = {
    "operations": ("census", "copied", "recounted"),
    "checks": ("census_of_checks", "copied_checks", "recounted_checks"),
}
"""The small tables of the first pass over the rows of a folder."""
TOGETHER: Final = ("curves", "answers")
"""Small tables of the same sums."""


def frame_of(session: SparkSession, table: pa.Table) -> DataFrame:
    """A table as a DataFrame. Through Spark Connect an empty one has no schema, so it is made of one
    row, which is left out."""
    if table.num_rows:
        return session.createDataFrame(table)
    row = pa.table([pa.nulls(1, field.type) for field in table.schema], table.schema.names)
    return session.createDataFrame(row).limit(0)


class Sums:
    """What ``rows.sql`` and ``report.sql`` define.

    Args:
        rows: the DataFrames `operations` and `checks`, or one of them for its first pass.
        known: small tables: `files` and `tallies`, and those that were computed already.
    """

    def __init__(
        self, rows: Mapping[str, DataFrame], known: Mapping[str, pa.Table] | None = None
    ) -> None:
        self.session = next(iter(rows.values())).sparkSession
        self._frames = {**rows}
        self._small = {**(known or {})}

    @cached_property
    def page(self) -> Page:
        """The time and the runs that a page shows."""
        return Page.of(self.small("hours"), self.small("runs"))

    def frame(self, name: str) -> DataFrame:
        """The rows of a query, or the given ones."""
        if name not in self._frames:
            self._frames[name] = self._run(name, {})
        return self._frames[name]

    def replace(self, name: str, frame: DataFrame) -> None:
        """Has later queries read the rows of a query from a DataFrame."""
        self._frames[name] = frame

    def small(self, name: str) -> pa.Table:
        """The rows of a small table."""
        if name not in self._small:
            if name in FEW:
                return self._small.setdefault(name, self._few(name))
            kept: dict[str, DataFrame] = {}
            try:
                for each in TOGETHER if name in TOGETHER else (name,):
                    self._small[each] = self._run(each, kept).toArrow()
            finally:
                for frame in kept.values():
                    frame.unpersist()
        return self._small[name]

    def _few(self, name: str) -> pa.Table:
        query = self._query(name)
        with DuckDB.opened() as engine:
            for each in _sources(query):
                engine.add(each, self.small(each))
            return engine.select(query.text)

    def _query(self, name: str) -> Query:
        """A query with its numbers."""
        query = QUERIES[name]
        numbers: dict[str, int] = {}
        for census, names in CENSUSES.items():
            if query.numbers & {*names}:
                numbers |= numbers_in(census, self.small(census))
        if query.numbers - numbers.keys():
            numbers |= self.page.numbers
        return query.with_numbers(numbers)

    def _run(self, name: str, kept: dict[str, DataFrame]) -> DataFrame:
        query = self._query(name)
        # With a name Spark drops the kept rows of the same plan, so a filter makes it another one.
        named = {each: self._source(each, kept).where("true") for each in _sources(query)}
        return self.session.sql(SOURCE.sub(r"\1\2{\3}", on_spark(query.text)), None, **named)

    def _source(self, name: str, kept: dict[str, DataFrame]) -> DataFrame:
        if name in self._frames:
            return self._frames[name]
        role = QUERIES[name].role
        if role == "keep":
            if name not in kept:
                kept[name] = self._run(name, kept).persist()
            return kept[name]
        is_small = role == "small"
        frame = frame_of(self.session, self.small(name)) if is_small else self.frame(name)
        self._frames[name] = frame
        return frame
