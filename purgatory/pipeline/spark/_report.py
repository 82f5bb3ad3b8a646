"""The tables of a report, as DataFrames."""

from functools import cached_property
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from purgatory.pipeline._snapshot import Snapshot
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
        self, operations: DataFrame, checks: DataFrame, journal: Journal | None = None
    ) -> None:
        rows = {"operations": operations, "checks": checks}
        snapshot, damaged = (journal.snapshot, journal.damaged) if journal else (NO_FILES, {})
        small = {"files": snapshot.files(damaged), "tallies": snapshot.tallies()}
        self._sums = Sums(
            {name: _checked(frame, name) for name, frame in rows.items()},
            small | (journal.known if journal else {}),
        )

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
        """How each purgatory and kind ended with its timeouts, and which timeout would have let 1 %
        and 0.1 % expire. A few jobs."""
        return self._small("timeouts")

    @cached_property
    def survival(self) -> DataFrame:
        """The expiry rate that each timeout would have given. A few jobs."""
        return self._small("survival")

    @cached_property
    def reconciliation(self) -> DataFrame:
        """The account of every file and every row. One pass over the rows."""
        return self._small("reconciliation")

    def _small(self, name: str) -> DataFrame:
        return frame_of(self._sums.session, self._sums.small(name))


def _checked(rows: DataFrame, folder: str) -> DataFrame:
    """The columns of the folder, and `file`."""
    found = {field.name: field.dataType for field in rows.schema}
    for field in FOLDERS[folder]:
        if field.name not in found:
            raise ValueError(
                f"{folder} must have the columns of a journal: {field.name!r} is missing"
            )
        expected, got = (each.simpleString() for each in (field.dataType, found[field.name]))
        if got != expected:
            raise ValueError(f"{folder}: the column {field.name!r} must be {expected}, got {got}")
    if "file" not in found:
        rows = rows.withColumn("file", F.lit(None).cast("string"))
    return rows.select(*(field.name for field in FOLDERS[folder]), "file")


def report(operations: DataFrame, checks: DataFrame, journal: Journal | None = None) -> Report:
    """The tables about operations and checks.

    Args:
        operations: a DataFrame with the columns of a journal's operations: what `read_journal`
            returns, or any table. It is read once for the first pass and once for each table, so
            `persist` it if reading it is expensive.
        checks: a DataFrame with the columns of a journal's checks.
        journal: what `read_journal` returned, if `operations` and `checks` are all its rows: then
            `reconciliation` also has its files, and the first pass is not done again.

    Raises:
        ValueError: a column is missing, or has another type.
    """
    return Report(operations, checks, journal)
