"""The queries of ``rows.sql`` on Spark: each is a DataFrame.

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
from purgatory.pipeline.report._queries import COPIES, ROWS, Page, copies_in, on_spark

QUERIES: Final = {query.name: query for query in ROWS}
SOURCE: Final = re.compile(r"\b(FROM|JOIN)(\s+)(operations|checks|" + "|".join(QUERIES) + r")\b")
"""Where the text of a query names another."""
FEW: Final = {
    query.name
    for query in ROWS
    if all(
        QUERIES[found[3]].role == "small"
        for found in SOURCE.finditer(query.text)
        if found[3] in QUERIES
    )
    and query.role in ("small", "show")
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
    """What ``rows.sql`` defines.

    Args:
        rows: the DataFrames `operations` and `checks`, or one of them for its first pass.
        known: small tables that were computed already.
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
                self._small[name] = self._few(name)
                return self._small[name]
            kept: dict[str, DataFrame] = {}
            try:
                for each in TOGETHER if name in TOGETHER else (name,):
                    self._small[each] = self._run(each, kept).toArrow()
            finally:
                for frame in kept.values():
                    frame.unpersist()
        return self._small[name]

    def _few(self, name: str) -> pa.Table:
        text = self._text(name)
        with DuckDB.opened() as engine:
            for each in {found[3] for found in SOURCE.finditer(text)}:
                engine.add(each, self.small(each))
            return engine.select(text)

    def _text(self, name: str) -> str:
        query = QUERIES[name]
        numbers = {
            number: copies_in(self.small(table))
            for number, table in COPIES.items()
            if number in query.numbers
        }
        if query.numbers - numbers.keys():
            numbers |= self.page.numbers
        return query.with_numbers(numbers).text

    def _run(self, name: str, kept: dict[str, DataFrame]) -> DataFrame:
        text = on_spark(self._text(name))
        names = {found[3] for found in SOURCE.finditer(text)}
        # With a name Spark drops the kept rows of the same plan, so a filter makes it another one.
        named = {each: self._source(each, kept).where("true") for each in names}
        return self.session.sql(SOURCE.sub(r"\1\2{\3}", text), None, **named)

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
