"""Runs the report's queries on Spark, on this machine or on a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, StringType, StructType

from purgatory.pipeline._files import Listing, Storage, Vanished, is_uri, replaced_by
from purgatory.pipeline._remote import storage_of
from purgatory.pipeline._rows import replaced_on_workers, rows_and_account
from purgatory.pipeline._schemas import FOLDERS, columns
from purgatory.pipeline._session import literal
from purgatory.pipeline._workers import for_workers, send_package
from purgatory.pipeline.report._queries import Line, Query

ABOUT: Final = columns(file=StringType(), damage=StringType(), is_account=BooleanType())
"""The columns of `rows_and_account` besides those of the journal."""
EMPTY: Final = "cannot be read as Parquet: Parquet file size is 0 bytes"
"""What pyarrow says of a file without a byte. Spark leaves such files out."""
GONE: Final = ("FAILED_READ_FILE.FILE_NOT_EXIST", "PATH_NOT_FOUND")
"""The errors of Spark if a file or a folder is not there any more."""


class Spark:
    """An `Engine`. See `on`."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._kept: list[DataFrame] = []

    @classmethod
    @contextmanager
    def on(cls, session: SparkSession) -> Iterator["Spark"]:
        """One whose tables are forgotten at the end of the block."""
        send_package(session)
        engine = cls(session)
        try:
            yield engine
        finally:
            for frame in [*engine._kept]:
                engine._forget(frame)

    def storage(self, path: str) -> Storage:
        return storage_of(self._session, path)

    def replaced_by(self, files: list[str]) -> set[str]:
        found = {name for file in files if not is_uri(file) for name in replaced_by(file)}
        for file in filter(is_uri, files):
            content = self._session.read.format("binaryFile").load(literal(file)).select("content")
            names = content.mapInArrow(for_workers(replaced_on_workers), "name string").collect()
            found |= {f"{file.rpartition('/')[0]}/{row.name}" for row in names}
        return found

    def read(self, folder: str, listings: dict[str, Listing]) -> dict[str, str]:
        frames = [self._rows(journal, folder, listing) for journal, listing in listings.items() if listing.sizes]
        schema = StructType([*FOLDERS[folder], *ABOUT])
        rows = reduce(DataFrame.unionAll, frames) if frames else self._session.createDataFrame([], schema)
        rows = self._keep(rows)
        try:
            told = {row.file: row.damage for row in rows.where("is_account").select("file", "damage").collect()}
        except PySparkException as error:
            if error.getCondition() not in GONE:
                raise
            self._forget(rows)
            raise Vanished(folder) from error
        sizes = {file: size for listing in listings.values() for file, size in listing.sizes.items()}
        unseen = sizes.keys() - told.keys()
        if any(sizes[file] for file in unseen):
            self._forget(rows)
            raise Vanished(folder)
        rows.where("NOT is_account").drop("damage", "is_account").createOrReplaceTempView(folder)
        damaged = {file: damage for file, damage in told.items() if damage is not None}
        return damaged | dict.fromkeys(unseen, EMPTY)

    def add(self, name: str, table: pa.Table) -> None:
        self._session.createDataFrame(table).createOrReplaceTempView(name)

    def run(self, query: Query, path: str) -> list[Line]:
        frame = self._session.sql(query.text)
        if query.role == "show":
            lines: list[Line] = frame.toArrow().to_pylist()
            return lines
        if query.role in ("write", "reject"):
            frame.write.parquet(path)
            frame = self._session.read.schema(frame.schema).parquet(literal(path))
        elif query.role == "keep":
            frame = self._keep(frame)
        frame.createOrReplaceTempView(query.name)
        return []

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist()
        self._kept.append(kept)
        return kept

    def _forget(self, frame: DataFrame) -> None:
        self._kept.remove(frame)
        frame.unpersist()

    def _rows(self, journal: str, folder: str, listing: Listing) -> DataFrame:
        reader = self._session.read.format("binaryFile").option("pathGlobFilter", "*.parquet")
        content = reader.load(literal(f"{journal}/{folder}")).select("path", "content")
        task = for_workers(rows_and_account, folder=folder, journal=journal, replaced=listing.replaced)
        return content.mapInArrow(task, StructType([*FOLDERS[folder], *ABOUT]))
