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
from purgatory.pipeline.report._durations import step_of
from purgatory.pipeline.report._queries import ROWS, Line, Query, Shown, Step
from purgatory.pipeline.report._window import page_tables, window_of

MEMORY: Final = "2GB"
"""The memory limit of DuckDB. The database, and data that do not fit, are in a temporary folder."""
BATCH_BYTES: Final = 16 * 1024 * 1024
"""The size of a batch of Parquet in bytes, about."""
THREADS: Final = 2
"""The batches that are read at a time."""
POWER: Final = "(length(CAST(micros AS STRING)) - 1)"
FUNCTIONS: Final = {
    "array_join(items, separator)": "array_to_string(items, separator)",
    "step_of(micros)": step_of(f"((micros * 10) // CAST(power(10, {POWER}) AS BIGINT))", POWER),
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
            for head, body in FUNCTIONS.items():
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

    def sums(self, work: str, step: Step) -> Shown:
        lines: dict[str, list[Line]] = {}
        window, runs = window_of([]), list[str]()
        for query in ROWS:
            step(query.name.replace("_", " "))
            lines[query.name] = self.run(query, work)
            if query.name == "largest_runs":
                window = window_of(lines["hours"])
                runs = [line["run_id"] for line in lines["largest_runs"]]
                for name, table in page_tables(window, runs).items():
                    self.add(name, table)
        return Shown(lines, window, runs)

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
