"""Reads journals natively: Parquet is read by Spark, without Python.

Each file is read whole or not at all. Spark's reader reports little about damage, and does not
notice some of it. So files that fail, or look wrong in the census, are read by pyarrow once more,
which names the file and the reason:

| fault of a file | noticed by |
|---|---|
| damaged pages or footer, other types | Spark's reader, with checksums of pages |
| a wider type | the footers: on this machine pyarrow reads them, elsewhere Spark merges their schemas |
| a column is missing | the same on this machine; elsewhere a column without any value |
| text that is not UTF-8 | the census |
| no bytes | the listing |
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final
from urllib.parse import quote

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.pipeline._files import (
    Listing,
    Local,
    Storage,
    Vanished,
    distinct,
    is_uri,
    replaced_by,
)
from purgatory.pipeline._reading import (
    Account,
    read_journals,
)
from purgatory.pipeline._remote import storage_of
from purgatory.pipeline._rows import damaged_files, damaged_on_workers, replaced_on_workers
from purgatory.pipeline._schemas import FOLDERS
from purgatory.pipeline._session import literal
from purgatory.pipeline._shown import without_secrets
from purgatory.pipeline._workers import for_workers, send_package
from purgatory.pipeline.spark._census import Census, judged, take_census

EMPTY: Final = "cannot be read as Parquet: Parquet file size is 0 bytes"
"""The reason that pyarrow has for a file without a byte. Spark skips such files."""
GONE: Final = ("FILE_NOT_EXIST", "PATH_NOT_FOUND", "FileNotFoundException")
"""Words in the errors of Spark if a file or a folder was deleted."""
SAFE: Final = "!$&'()*+,;=:@~"
"""The characters that Spark does not encode in `_metadata.file_name`, which is a part of a URI."""
OPTIONS: Final = {
    "pathGlobFilter": "*.parquet",
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "recursiveFileLookup": "false",
}
"""The options of the reader, so that settings of the session make no difference."""
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
    censuses: dict[str, Census] = field(repr=False)

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
    source, account = read_source(spark, journals)
    return Journal(source.rows["operations"], source.rows["checks"], account, source.censuses)


def read_source(
    spark: SparkSession, journals: Iterable[str], folders: Sequence[str] = tuple(FOLDERS)
) -> tuple["SparkSource", Account]:
    """Reads some folders of journals."""
    source = SparkSource(spark)
    return source, read_journals(source, distinct(journals), folders)


class SparkSource:
    """A `Source` whose rows are DataFrames."""

    def __init__(self, spark: SparkSession, *, keeps_small_files: bool = False) -> None:
        self._spark = spark
        self._keeps_small_files = keeps_small_files
        self._kept: list[DataFrame] = []
        self.rows: dict[str, DataFrame] = {}
        """The rows of each folder that was read."""
        self.censuses: dict[str, Census] = {}

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
            try:
                census = take_census(judged(rows, folder), folder)
            except (PySparkException, Py4JJavaError) as error:
                _raise_if_gone(error, folder)
                more = self._damaged(folder, listings, left)
                if not more:
                    raise
                damaged |= more
                continue
            names = {without_secrets(file): file for file in left}
            suspects = {names[name] for name in census.suspicious}
            seen = {names[name] for name in census.seen}
            # A file without rows is not in the census: its columns may be wrong.
            more = self._damaged(folder, listings, suspects | (left - seen))
            if not more:
                self.rows[folder], self.censuses[folder] = rows, census
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
        rows = reduce(DataFrame.unionAll, frames)
        return rows.withColumn("part", F.coalesce("part", F.lit(0))) if folder == "checks" else rows

    def _files(
        self, journal: str, folder: str, listing: Listing, damaged: Iterable[str]
    ) -> DataFrame:
        place = f"{journal}/{folder}"
        names = {file.rpartition("/")[2] for file in (*listing.sizes, *listing.replaced)}
        name = "_metadata.file_name"
        if any(quote(each, safe=SAFE) != each for each in names):
            name = f"url_decode(replace({name}, '+', '%2B'))"
        without = [
            file.rpartition("/")[2]
            for file in (*listing.replaced, *damaged)
            if file.rpartition("/")[0] == place
        ]
        rows = self._spark.read.schema(FOLDERS[folder]).options(**OPTIONS).parquet(literal(place))
        if without:  # Spark filters the listing by this, and does not open those files
            encoded = {*without, *(quote(each, safe=SAFE) for each in without)}
            rows = rows.where(~F.col("_metadata.file_name").isin(sorted(encoded)))
        return rows.select(
            "*", F.concat(F.lit(without_secrets(f"{place}/")), F.expr(name)).alias("file")
        )

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
        reader = self._spark.read.options(**options)
        try:
            found = reader.parquet(literal(f"{journal}/{folder}")).schema
        except (PySparkException, Py4JJavaError) as error:
            _raise_if_gone(error, folder)
            return False
        types = {each.name: each.dataType.simpleString() for each in found}
        return all(
            types.get(each.name, "bigint" if each.name == "part" else None)
            == each.dataType.simpleString()
            for each in FOLDERS[folder]
        )

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
        names = [file.rpartition("/")[2] for file in files]
        encoded = {*names, *(quote(each, safe=SAFE) for each in names)}
        content = (
            self._spark.read.format("binaryFile")
            .option("pathGlobFilter", "*.parquet")
            .load(literal(place))
            .where(F.col("_metadata.file_name").isin(sorted(encoded)))
            .select("path", "content")
        )
        send_package(self._spark)
        task = for_workers(damaged_on_workers, folder=folder)
        found = content.mapInArrow(task, "name string, damage string").collect()
        return {f"{place}/{row.name}": row.damage for row in found}


def _raise_if_gone(error: BaseException, folder: str) -> None:
    text = str(error)
    if any(word in text for word in GONE):
        raise Vanished(folder) from error
