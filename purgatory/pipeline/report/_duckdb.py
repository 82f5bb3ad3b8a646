"""Makes a report in this process, on DuckDB."""

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
    replaced_by,
    row_groups_of,
)
from purgatory.pipeline._rows import nullable, read
from purgatory.pipeline.report._queries import COPIES, ROWS, Line, Page, Query, Step, copies_in
from purgatory.pipeline.report._window import window_of

MEMORY: Final = "2GB"
"""The memory limit of DuckDB. The database, and data that do not fit, are in a temporary folder."""
BATCH_BYTES: Final = 16 * 1024 * 1024
"""The size of a batch of Parquet in bytes, about."""
THREADS: Final = 2
"""The batches that are read at a time."""
MACROS: Final = {
    "array_join(items, separator)": "array_to_string(items, separator)",
    "is_valid_utf8(text)": "true",  # as `read` makes sure
}
"""Functions of the queries that DuckDB lacks."""


class DuckDB:
    """An `Engine`. See `opened`."""

    steps = len(ROWS)

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator["DuckDB"]:
        """An engine with a database in a temporary folder."""
        with (
            tempfile.TemporaryDirectory(prefix="purgatory-") as folder,
            duckdb.connect(f"{folder}/report") as connection,
        ):
            settings = {
                "memory_limit": MEMORY,
                "temp_directory": folder,
                "TimeZone": "UTC",
                "preserve_insertion_order": "false",
            }
            for name, value in settings.items():
                connection.execute(f"SET {name} = '{value}'")
            for head, body in MACROS.items():
                connection.execute(f"CREATE MACRO {head} AS {body}")
            yield cls(connection)

    def storage(self, path: str) -> Storage:  # noqa: ARG002
        return Local()

    def replaced_by(self, files: list[str]) -> set[str]:
        return {name for file in files for name in replaced_by(file)}

    def read(self, folder: str, listings: dict[str, Listing]) -> dict[str, str]:
        sizes = {
            file: size for listing in listings.values() for file, size in listing.sizes.items()
        }
        groups = {file: row_groups_of(file) for file, size in sizes.items() if size > BATCH_BYTES}
        self.add(
            folder, nullable(FOLDERS[folder]).append(pa.field("file", pa.string())).empty_table()
        )
        damaged: dict[str, str] = {}
        with ThreadPoolExecutor(THREADS) as pool:
            for batch in pool.map(
                partial(read, folder=folder), batches_of_parts(sizes, groups, BATCH_BYTES)
            ):
                if batch.has_vanished:
                    raise Vanished(folder)
                damaged |= batch.damaged
                numbers = [
                    number for number, count in enumerate(batch.counts) for _ in range(count)
                ]
                files = pa.DictionaryArray.from_arrays(
                    pa.array(numbers, pa.int32()), pa.array(batch.files, pa.string())
                )
                self._connection.register("batch", batch.table.append_column("file", files))
                self._connection.execute(f"INSERT INTO {folder} SELECT * FROM batch")
                self._connection.unregister("batch")
        if damaged:  # if one part of a large file is damaged, none of the file counts
            self._connection.execute(
                f"DELETE FROM {folder} WHERE file IN (SELECT unnest(?))", [[*damaged]]
            )
        return damaged

    def sums(self, work: str, step: Step) -> tuple[dict[str, list[Line]], Page]:
        lines: dict[str, list[Line]] = {}
        numbers: dict[str, int] = {}
        page = Page(window_of([]), [])
        for query in ROWS:
            step(query.name.replace("_", " "))
            lines[query.name] = self.run(query.with_numbers(numbers), work)
            if query.name in COPIES.values():
                [name] = [number for number, table in COPIES.items() if table == query.name]
                numbers[name] = copies_in(self.select(f"FROM {query.name}"))
            if query.name == "hours":
                page = Page.of(self.select("FROM hours"), self.select("FROM runs"))
                numbers |= page.numbers
        return lines, page

    def add(self, name: str, table: pa.Table) -> None:
        self._connection.register("given", table)
        self._connection.execute(f'CREATE OR REPLACE TABLE "{name}" AS SELECT * FROM given')
        self._connection.unregister("given")

    def run(self, query: Query, work: str) -> list[Line]:
        if query.role == "show":
            lines: list[Line] = self.select(query.text).to_pylist()
            return lines
        kind = "VIEW" if query.role == "view" else "TABLE"
        self._connection.execute(f'CREATE OR REPLACE {kind} "{query.name}" AS {query.text}')
        if query.role in ("write", "reject"):
            folder = Path(work, query.place)
            folder.mkdir(parents=True)
            file = str(folder / "part-00000.parquet").replace("'", "''")
            self._connection.execute(f"COPY \"{query.name}\" TO '{file}' (FORMAT parquet)")
        return []

    def select(self, text: str) -> pa.Table:
        """The rows of a query."""
        return self._connection.sql(text).to_arrow_table()
