"""The tables of a report, as DataFrames."""

from functools import cached_property
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from purgatory.pipeline._snapshot import Snapshot
from purgatory.pipeline.report._duckdb import DuckDB
from purgatory.pipeline.report._queries import REPORT
from purgatory.pipeline.spark._journal import FOLDERS, Journal
from purgatory.pipeline.spark._sums import Sums, frame_of

NO_FILES: Final = Snapshot([], {}, {}, {})


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
        journal: Journal | None = None,
    ) -> None:
        rows = {"operations": operations, "checks": checks}
        self._sums = Sums(
            {name: _checked(frame, name) for name, frame in rows.items()},
            journal.known if journal else None,
        )
        snapshot, damaged = (journal.snapshot, journal.damaged) if journal else (NO_FILES, {})
        self._files, self._tallies = snapshot.files(damaged), snapshot.tallies()

    @property
    def outcomes(self) -> DataFrame:
        """How operations ended, and how long they had waited, by purgatory, kind and minute."""
        return self._sums.frame("outcomes")

    @property
    def keys(self) -> DataFrame:
        """The number of operations that watched each key, and the results of its checks."""
        return self._sums.frame("keys")

    @property
    def pending(self) -> DataFrame:
        """How many operations were pending, by purgatory and second. Seconds without events share a
        row."""
        return self._sums.frame("pending")

    @cached_property
    def timeouts(self) -> DataFrame:
        """What each purgatory and kind did with its timeouts, and which timeout would have let 1 %
        and 0.1 % expire. A few jobs."""
        return self._reported("timeouts", "kinds", sums=("cube", "answers"))

    @cached_property
    def survival(self) -> DataFrame:
        """What share each timeout would have let expire. A few jobs."""
        return self._reported("survival", sums=("curves",))

    @cached_property
    def reconciliation(self) -> DataFrame:
        """The account of every file and every row. One pass over the rows."""
        sums = ("runs", "counted_operations", "counted_checks")
        return self._reported("reconciliation", "by_folder", sums=sums)

    def _reported(self, name: str, *views: str, sums: tuple[str, ...]) -> DataFrame:
        """A table that a query of ``report.sql`` makes of small tables, in this process."""
        with DuckDB.opened() as engine:
            engine.add("files", self._files)
            engine.add("tallies", self._tallies)
            for each in sums:
                engine.add(each, self._sums.small(each))
            for query in REPORT:
                if query.name in views:
                    engine.run(query, "")
            [text] = [query.text for query in REPORT if query.name == name]
            return frame_of(self._sums.session, engine.select(text))


def _checked(rows: DataFrame, folder: str) -> DataFrame:
    """The columns of the folder, and `file`."""
    found = {field.name: field.dataType for field in rows.schema}
    for field in FOLDERS[folder]:
        if field.name not in found:
            raise ValueError(
                f"{folder} must have the columns of a journal: {field.name!r} is missing"
            )
        if _plain(found[field.name]) != _plain(field.dataType):
            raise ValueError(
                f"{folder}: the column {field.name!r} must be {field.dataType.simpleString()}, "
                f"got {found[field.name].simpleString()}"
            )
    if "file" not in found:
        rows = rows.withColumn("file", F.lit(None).cast("string"))
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
    return Report(operations, checks, journal)
