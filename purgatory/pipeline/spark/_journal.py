"""Reads journals natively: Parquet is read by Spark, with checksums of pages and without Python.

If that fails, one pass of pyarrow over the files names those that are damaged, with the reasons, and
Spark reads the others. As with pyarrow, see `_rows`, a column that is missing has the value in the
name of the file's folder, or else is null.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Final
from urllib.parse import quote

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from purgatory.pipeline import _files, _rows
from purgatory.pipeline._files import NULL, Storage, Vanished, distinct, in_folders, relative
from purgatory.pipeline._programs import without_secrets
from purgatory.pipeline._remote import storage_of
from purgatory.pipeline._rows import SCHEMAS, damaged_on_workers
from purgatory.pipeline._session import literal
from purgatory.pipeline._snapshot import Snapshot, read_whole
from purgatory.pipeline.spark._sums import FIRST_PASS, Sums

FOLDERS: Final[dict[str, StructType]] = {
    name: from_arrow_schema(schema) for name, schema in SCHEMAS.items()
}
"""The columns of a folder. `purgatory.journal` describes them."""
EMPTY: Final = "cannot be read as Parquet: Parquet file size is 0 bytes"
"""The reason that pyarrow has for a file without a byte. Spark skips such files."""
GONE: Final = ("FILE_NOT_EXIST", "PATH_NOT_FOUND", "FileNotFoundException")
"""Words in the errors of Spark if a file or a folder was deleted."""
SAFE: Final = "!$&'()*+,;=:@~/"
"""The characters that Spark does not encode in `_metadata`, which has URIs."""
PARQUET_V1: Final = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
"""The reader that has `_metadata`, also where `spark.sql.sources.useV1SourceList` does not name it."""
FILES: Final = {"pathGlobFilter": "*.{parquet,pq}", "recursiveFileLookup": "true"}
OPTIONS: Final = FILES | {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
}
"""The options of the reader, so that settings of the session make no difference."""
SMALL_BYTES: Final = 256 * 1024
"""Up to this average size of files, opening them again costs more than keeping their rows."""


Known = dict[str, pa.Table]
"""Small tables of the first pass over the rows, by name."""


@dataclass(frozen=True, slots=True)
class Journal:
    """The rows of journals. `read_journal` makes it."""

    operations: DataFrame
    """The columns that `purgatory.journal` describes, and `file`, the full name of the row's
    file."""
    checks: DataFrame
    damaged: dict[str, str]
    """The reason for each file that cannot be read; none of its rows is here."""
    snapshot: Snapshot = field(repr=False)
    known: Known = field(repr=False)


def read_journal(spark: SparkSession, *journals: str) -> Journal:
    """Reads journals. A pass over all rows finds damaged files and copies of rows.

    The files are listed once. If they are compacted afterwards, reading `Journal.operations` fails
    as reading any deleted file does; then read the journal again.

    Args:
        spark: a session, which may be of Spark Connect.
        journals: folders, or their URIs.

    Raises:
        NoJournal: one of them has no folder ``operations``, or is compacted all the time.
    """
    reader = Reader(spark)
    return read_whole(reader.storage, distinct(journals), reader.journal)


class Reader:
    """Reads the files of a snapshot.

    Args:
        keeps_small_files: keep the rows of small files in memory, until `close`.
    """

    def __init__(self, spark: SparkSession, *, keeps_small_files: bool = False) -> None:
        self._spark = spark
        self._keeps_small_files = keeps_small_files
        self._kept: list[DataFrame] = []

    def close(self) -> None:
        """Forgets rows that were kept in memory."""
        while self._kept:
            self._kept.pop().unpersist()

    def storage(self, path: str) -> Storage:
        """The file system of a path or a URI."""
        return storage_of(self._spark, path)

    def journal(self, snapshot: Snapshot) -> Journal:
        """Reads the rows, in a pass over all of them.

        Raises:
            Vanished: a file was deleted meanwhile.
        """
        with vanishing():
            parts = [self._folder(snapshot, folder) for folder in FOLDERS]
        (operations, bad, known), (checks, more_bad, more_known) = parts
        return Journal(operations, checks, bad | more_bad, snapshot, known | more_known)

    def _folder(self, snapshot: Snapshot, folder: str) -> tuple[DataFrame, dict[str, str], Known]:
        """The rows of a folder, its damaged files, and the small tables of its first pass."""
        damaged = {file: EMPTY for file, size in snapshot.sizes[folder].items() if not size}
        while True:
            rows = self._frame(snapshot, folder, damaged)
            sums = Sums({folder: rows})
            try:
                return rows, damaged, {name: sums.small(name) for name in FIRST_PASS[folder]}
            except (PySparkException, Py4JJavaError):
                found = self._damage(snapshot, folder).items() - damaged.items()
                if not found:
                    raise
                damaged |= found

    def _frame(self, snapshot: Snapshot, folder: str, damaged: Iterable[str]) -> DataFrame:
        files = snapshot.sizes[folder]
        frames = [
            self._rows_of(f"{journal}/{folder}", folder, mine, damaged)
            for journal in snapshot.journals
            if (mine := _below(f"{journal}/{folder}", files)) and {*mine} - {*damaged}
        ]
        if not frames:
            empty = self._spark.createDataFrame([], FOLDERS[folder])
            return empty.withColumn("file", F.lit(""))
        rows = reduce(DataFrame.unionAll, frames)
        if self._keeps_small_files and sum(files.values()) <= SMALL_BYTES * len(files):
            self._kept.append(rows := rows.persist())
        return rows

    def _rows_of(
        self, place: str, folder: str, files: list[str], damaged: Iterable[str]
    ) -> DataFrame:
        file = _name(place, files)
        reader = self._spark.read.schema(FOLDERS[folder]).options(**OPTIONS)
        rows = reader.format(PARQUET_V1).load(literal(place))
        if without := _below(place, damaged):
            # Spark filters the listing by this, and does not open those files
            rows = rows.where(~file.isin(sorted(relative(each, place) for each in without)))
        given = {name for each in files for name in in_folders(relative(each, place))}
        columns = [
            F.coalesce(each.name, _in_folders(file, each)).alias(each.name)
            if each.name in given
            else F.col(each.name)
            for each in FOLDERS[folder]
        ]
        return rows.select(
            *columns, F.concat(F.lit(without_secrets(f"{place}/")), file).alias("file")
        )

    def _damage(self, snapshot: Snapshot, folder: str) -> dict[str, str]:
        """The reason for each file that pyarrow cannot read."""
        for module in (_files, _rows):  # workers need not have this package
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        task = partial(damaged_on_workers, folder=folder)
        reader = self._spark.read.format("binaryFile").options(**FILES)
        found: dict[str, str] = {}
        for place in (f"{journal}/{folder}" for journal in snapshot.journals):
            if _below(place, snapshot.sizes[folder]):
                content = reader.load(literal(place)).select("path", "content")
                rows = content.mapInArrow(task, "path string, damage string").collect()
                found |= {f"{place}/{relative(row.path, place)}": row.damage for row in rows}
        return {file: found[file] for file in found.keys() & snapshot.sizes[folder].keys()}


@contextmanager
def vanishing() -> Iterator[None]:
    """Turns an error of Spark about a file that was deleted into `Vanished`."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if any(word in str(error) for word in GONE):
            raise Vanished from error
        raise


def _below(place: str, files: Iterable[str]) -> list[str]:
    return [file for file in files if file.startswith(f"{place}/")]


def _name(place: str, files: Iterable[str]) -> Column:
    """The name of a row's file in a folder; of `files` at least one."""
    names = [relative(file, place) for file in files]
    if any("/" in name for name in names):
        # Spark filters the listing by paths without the two slashes of an empty host.
        place = f"^[^:]*:(//[^/]*)?(/+[^/]+){{{len(relative(place, '').split('/'))}}}/+"
        name = f"regexp_replace(_metadata.file_path, '{place}', '')"
    else:
        name = "_metadata.file_name"
    if any(quote(each, safe=SAFE) != each for each in names):
        name = f"url_decode(replace({name}, '+', '%2B'))"
    return F.expr(name)


def _in_folders(file: Column, field: StructField) -> Column:
    """The value of a column in the names of the folders of `file`: see `_files.in_folders`."""
    value = F.regexp_extract(file, f"(?:^|/){field.name}=([^/]*)/", 1)
    text = F.coalesce(F.try_url_decode(F.replace(value, F.lit("+"), F.lit("%2B"))), value)
    return F.when(~value.isin("", NULL), text.try_cast(field.dataType))
