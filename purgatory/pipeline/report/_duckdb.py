"""Runs the report's queries in this process, on DuckDB."""

import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from purgatory.journal import FOLDERS
from purgatory.pipeline._files import (
    Listing,
    Local,
    Storage,
    Vanished,
    batches_of_parts,
    is_uri,
    replaced_by,
    row_groups_of,
)
from purgatory.pipeline._rows import nullable, read
from purgatory.pipeline.report._queries import Line, Query

MEMORY: Final = "2GB"
"""That DuckDB may take. The database and what does not fit are in a temporary folder."""
BATCH_BYTES: Final = 16 * 1024 * 1024
"""About how much of Parquet is read at once."""
THREADS: Final = 2
"""So many such batches are read at a time."""
FUNCTIONS: Final = {
    "array_compact(items)": "list_filter(items, lambda item: item IS NOT NULL)",
    "array_join(items, separator)": "array_to_string(items, separator)",
    "explode(items)": "unnest(items)",
    "log1p(x)": "ln(1 + x)",
    "sequence(low, high)": "generate_series(low, high)",
    "size(items)": "len(items)",
    "timestamp_micros(micros)": "make_timestamptz(CAST(micros AS BIGINT))",
    "unix_micros(instant)": "epoch_us(instant)",
}
"""What Spark has and DuckDB lacks, or calls something else."""
WORDS: Final = {"`": '"', " DIV ": " // ", "LEFT ANTI JOIN": "ANTI JOIN"}


class DuckDB:
    """An `Engine`. See `opened`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator["DuckDB"]:
        """One with a database in a temporary folder."""
        with tempfile.TemporaryDirectory(prefix="purgatory-") as folder, duckdb.connect(f"{folder}/report") as connection:
            settings = {
                "memory_limit": MEMORY,
                "temp_directory": folder,
                "TimeZone": "UTC",
                "preserve_insertion_order": "false",
            }
            for name, value in settings.items():
                connection.execute(f"SET {name} = '{value}'")
            for head, body in FUNCTIONS.items():
                connection.execute(f"CREATE MACRO {head} AS {body}")
            yield cls(connection)

    def storage(self, path: str) -> Storage:
        if is_uri(path):
            raise OSError(f"cannot reach {path!r} with DuckDB, which reads and writes folders of this machine: --engine spark")
        return Local()

    def replaced_by(self, files: list[str]) -> set[str]:
        return {name for file in files for name in replaced_by(file)}

    def read(self, folder: str, listings: dict[str, Listing]) -> dict[str, str]:
        sizes = {file: size for listing in listings.values() for file, size in listing.sizes.items()}
        groups = {file: row_groups_of(file) for file, size in sizes.items() if size > BATCH_BYTES}
        self._make(folder, nullable(FOLDERS[folder]).append(pa.field("file", pa.string())).empty_table())
        damaged: dict[str, str] = {}
        with ThreadPoolExecutor(THREADS) as pool:
            for batch in pool.map(partial(read, folder=folder), batches_of_parts(sizes, groups, BATCH_BYTES)):
                if batch.has_vanished:
                    raise Vanished(folder)
                damaged |= batch.damaged
                numbers = [number for number, count in enumerate(batch.counts) for _ in range(count)]
                files = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(batch.files, pa.string()))
                self._connection.register("batch", batch.table.append_column("file", files))
                self._connection.execute(f"INSERT INTO {folder} SELECT * FROM batch")
                self._connection.unregister("batch")
        if damaged:  # if one part of a large file is damaged, none of the file counts
            self._connection.execute(f"DELETE FROM {folder} WHERE file IN (SELECT unnest(?))", [[*damaged]])
        return damaged

    def add(self, name: str, table: pa.Table) -> None:
        self._make(name, table)

    def run(self, query: Query, path: str) -> list[Line]:
        text = _in_words_of_duckdb(query.text)
        if query.role == "show":
            lines: list[Line] = self._connection.sql(text).to_arrow_table().to_pylist()
            return lines
        kind = "VIEW" if query.role == "view" else "TABLE"
        self._connection.execute(f'CREATE OR REPLACE {kind} "{query.name}" AS {text}')
        if query.role in ("write", "reject"):
            Path(path).mkdir(parents=True)
            file = str(Path(path, "part-00000.parquet")).replace("'", "''")
            self._connection.execute(f"COPY \"{query.name}\" TO '{file}' (FORMAT parquet)")
        return []

    def _make(self, name: str, table: pa.Table) -> None:
        self._connection.register("given", table)
        self._connection.execute(f'CREATE OR REPLACE TABLE "{name}" AS SELECT * FROM given')
        self._connection.unregister("given")


def _in_words_of_duckdb(text: str) -> str:
    return re.sub("|".join(map(re.escape, WORDS)), lambda found: WORDS[found[0]], text)
