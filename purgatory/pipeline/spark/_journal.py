"""Reads journals natively: Parquet is read by Spark, without Python.

Each file is read whole or not at all. Spark's reader reports little about damage, and does not
notice some of it. So one pass looks at every file, and files that fail or look wrong there are read
by pyarrow once more, which names the file and the reason:

| fault of a file | noticed by |
|---|---|
| damaged pages or footer, other types | Spark's reader, with checksums of pages |
| a wider type | the footers: on this machine pyarrow reads them, elsewhere Spark merges their schemas |
| a column is missing | the same on this machine; elsewhere a column without any value |
| text that is not UTF-8 | the pass |
| no bytes | the listing |
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import Final
from urllib.parse import quote

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.pipeline._files import (
    Listing,
    Local,
    Storage,
    Vanished,
    distinct,
    is_uri,
    relative,
    replaced_by,
)
from purgatory.pipeline._programs import without_secrets
from purgatory.pipeline._reading import (
    Account,
    read_journals,
)
from purgatory.pipeline._remote import storage_of
from purgatory.pipeline._rows import damaged_files, damaged_on_workers, replaced_on_workers
from purgatory.pipeline._schemas import FOLDERS
from purgatory.pipeline._session import literal
from purgatory.pipeline._workers import for_workers, send_package
from purgatory.pipeline.spark._sums import FIRST_PASS, Sums

EMPTY: Final = "cannot be read as Parquet: Parquet file size is 0 bytes"
"""The reason that pyarrow has for a file without a byte. Spark skips such files."""
GONE: Final = ("FILE_NOT_EXIST", "PATH_NOT_FOUND", "FileNotFoundException")
"""Words in the errors of Spark if a file or a folder was deleted."""
SAFE: Final = "!$&'()*+,;=:@~/"
"""The characters that Spark does not encode in `_metadata`, which has URIs."""
PARQUET_V1: Final = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
"""The reader that has `_metadata`, also where `spark.sql.sources.useV1SourceList` does not name it."""
OPTIONS: Final = {
    "pathGlobFilter": "*.{parquet,pq}",
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "recursiveFileLookup": "true",
}
"""The options of the reader, so that settings of the session make no difference."""
BINARY_OPTIONS: Final = {
    "pathGlobFilter": OPTIONS["pathGlobFilter"],
    "recursiveFileLookup": OPTIONS["recursiveFileLookup"],
}
SMALL_BYTES: Final = 256 * 1024
"""Up to this average size of files, opening them again costs more than keeping their rows."""


@dataclass(frozen=True, slots=True)
class Journal:
    """The rows of journals. `read_journal` makes it."""

    operations: DataFrame
    """The columns that `purgatory.journal` describes, and `file`, the full name of the row's
    file."""
    checks: DataFrame
    account: Account = field(repr=False)
    known: dict[str, pa.Table] = field(repr=False)
    """The small tables of the first pass."""

    @property
    def damaged(self) -> dict[str, str]:
        """The reason for each file that cannot be read; none of its rows is here."""
        return self.account.damaged


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
    source = SparkSource(spark)
    account = read_journals(source, distinct(journals))
    return Journal(source.rows["operations"], source.rows["checks"], account, source.known)


class SparkSource:
    """A `Source` whose rows are DataFrames."""

    def __init__(self, spark: SparkSession, *, keeps_small_files: bool = False) -> None:
        self._spark = spark
        self._keeps_small_files = keeps_small_files
        self._kept: list[DataFrame] = []
        self.rows: dict[str, DataFrame] = {}
        """The rows of each folder that was read."""
        self.known: dict[str, pa.Table] = {}
        """The small tables of the first pass over them."""

    def close(self) -> None:
        """Forgets rows that were kept in memory."""
        while self._kept:
            self._kept.pop().unpersist()

    def storage(self, path: str) -> Storage:
        return storage_of(self._spark, path)

    def replaced_by(self, files: list[str]) -> set[str]:
        found = {name for file in files if not is_uri(file) for name in replaced_by(file)}
        for file in filter(is_uri, files):
            content = self._spark.read.format("binaryFile").load(literal(file)).select("content")
            send_package(self._spark)
            names = content.mapInArrow(for_workers(replaced_on_workers), "name string").collect()
            found |= {f"{file.rpartition('/')[0]}/{row.name}" for row in names}
        return found

    def read(self, folder: str, listings: dict[str, Listing]) -> dict[str, str]:
        sizes = {
            file: size for listing in listings.values() for file, size in listing.sizes.items()
        }
        damaged = dict.fromkeys((file for file, size in sizes.items() if not size), EMPTY)
        damaged |= self._wrong_columns(folder, listings, damaged)
        while True:
            rows = self._frame(folder, listings, damaged)
            if self._keeps_small_files and sum(sizes.values()) <= SMALL_BYTES * len(sizes):
                self._kept.append(rows := rows.persist())
            left = sizes.keys() - damaged.keys()
            sums = Sums({folder: rows})
            try:
                looks = sums.small(f"looks_of_{folder}")
            except (PySparkException, Py4JJavaError) as error:
                _raise_if_gone(error, folder)
                more = self._damaged(folder, listings, left)
                if not more:
                    raise
                damaged |= more
                continue
            names = {without_secrets(file): file for file in left}
            found = {each["file"]: each["is_fine"] for each in looks.to_pylist()}
            fine = {file for name, file in names.items() if found.get(name)}
            # The pass does not see a file without rows: its columns may be wrong.
            more = self._damaged(folder, listings, left - fine)
            if not more:
                self.rows[folder] = rows
                self.known |= {name: sums.small(name) for name in FIRST_PASS[folder]}
                return damaged
            damaged |= more

    def _frame(
        self, folder: str, listings: dict[str, Listing], damaged: Iterable[str]
    ) -> DataFrame:
        frames = [
            self._files(journal, folder, listing, damaged)
            for journal, listing in listings.items()
            if listing.sizes.keys() - {*damaged}
        ]
        if not frames:
            empty = self._spark.createDataFrame([], FOLDERS[folder])
            frames = [empty.withColumn("file", F.lit(""))]
        return reduce(DataFrame.unionAll, frames)

    def _files(
        self, journal: str, folder: str, listing: Listing, damaged: Iterable[str]
    ) -> DataFrame:
        place = f"{journal}/{folder}"
        names = [relative(file, place) for file in (*listing.sizes, *listing.replaced)]
        file = _name(place, names)
        without = [
            relative(each, place)
            for each in (*listing.replaced, *damaged)
            if each.startswith(f"{place}/")
        ]
        reader = self._spark.read.schema(FOLDERS[folder]).options(**OPTIONS)
        rows = reader.format(PARQUET_V1).load(literal(place))
        if without:  # Spark filters the listing by this, and does not open those files
            rows = rows.where(~file.isin(sorted(without)))
        return rows.select("*", F.concat(F.lit(without_secrets(f"{place}/")), file).alias("file"))

    def _wrong_columns(
        self, folder: str, listings: dict[str, Listing], damaged: Iterable[str]
    ) -> dict[str, str]:
        """The files whose footers have other columns than the folder's."""
        found: dict[str, str] = {}
        for journal, listing in listings.items():
            files = listing.sizes.keys() - {*damaged}
            if not is_uri(journal):
                found |= damaged_files(sorted(files), folder, whole=False)
            elif files and not self._has_types(journal, folder):
                found |= self._damaged(folder, {journal: listing}, files)
        return found

    def _has_types(self, journal: str, folder: str) -> bool:
        """Whether all files have the folder's types of columns."""
        options = OPTIONS | {"mergeSchema": "true"}
        reader = self._spark.read.options(**options).format(PARQUET_V1)
        try:
            found = reader.load(literal(f"{journal}/{folder}")).schema
        except (PySparkException, Py4JJavaError) as error:
            _raise_if_gone(error, folder)
            return False
        types = {each.name: each.dataType.simpleString() for each in found}
        return all(types.get(each.name) == each.dataType.simpleString() for each in FOLDERS[folder])

    def _damaged(
        self, folder: str, listings: dict[str, Listing], files: Iterable[str]
    ) -> dict[str, str]:
        """The reason for each file that pyarrow cannot read."""
        files = {*files}
        found: dict[str, str] = {}
        for journal, listing in listings.items():
            those = sorted(files & listing.sizes.keys())
            if those and isinstance(self.storage(journal), Local):
                found |= damaged_files(those, folder)
            elif those:
                found |= self._damaged_elsewhere(f"{journal}/{folder}", folder, those)
        return found

    def _damaged_elsewhere(self, place: str, folder: str, files: list[str]) -> dict[str, str]:
        names = [relative(file, place) for file in files]
        reader = self._spark.read.format("binaryFile").options(**BINARY_OPTIONS)
        content = reader.load(literal(place)).where(_name(place, names).isin(sorted(names)))
        send_package(self._spark)
        task = for_workers(damaged_on_workers, folder=folder)
        found = content.select("path", "content").mapInArrow(task, "path string, damage string")
        return {f"{place}/{relative(row.path, place)}": row.damage for row in found.collect()}


def _name(place: str, names: Iterable[str]) -> Column:
    """The name of a row's file in a folder; of `names` at least one."""
    names = [*names]
    if any("/" in name for name in names):
        # Spark filters the listing by paths without the two slashes of an empty host.
        place = f"^[^:]*:(//[^/]*)?(/+[^/]+){{{len(relative(place, '').split('/'))}}}/+"
        name = f"regexp_replace(_metadata.file_path, '{place}', '')"
    else:
        name = "_metadata.file_name"
    if any(quote(each, safe=SAFE) != each for each in names):
        name = f"url_decode(replace({name}, '+', '%2B'))"
    return F.expr(name)


def _raise_if_gone(error: BaseException, folder: str) -> None:
    text = str(error)
    if any(word in text for word in GONE):
        raise Vanished(folder) from error
