"""Makes a report in this process, on DuckDB."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from purgatory.pipeline._files import Local, Storage
from purgatory.pipeline._rows import SCHEMAS, batches
from purgatory.pipeline._snapshot import Snapshot
from purgatory.pipeline.report._queries import (
    CENSUSES,
    ROWS,
    Line,
    Page,
    Query,
    Step,
    numbers_in,
    window_of,
)

MEMORY: Final = "2GB"
"""The memory limit of DuckDB. The database, and data that do not fit, are in a temporary folder."""
MACROS: Final = {
    "array_join(items, separator)": "array_to_string(items, separator)",
    "element_at(items, place)": "list_extract(items, place)",
    "explode(items)": "unnest(items)",
    "is_valid_utf8(text)": "true",  # as pyarrow makes sure
    "percentile(item, shares)": "quantile_cont(item, shares)",
    "sequence(first, last)": "generate_series(first, last)",
    "size(items)": "len(items)",
    "timestamp_micros(number)": "make_timestamptz(number)",
    "unix_micros(instant)": "epoch_us(instant)",
}
"""Functions of Spark that DuckDB lacks, or calls by other names."""


class DuckDB:
    """An `Engine`. See `opened`."""

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

    def read(self, snapshot: Snapshot) -> dict[str, str]:
        damaged: dict[str, str] = {}
        for folder, files in snapshot.sizes.items():
            text = pa.field("file", pa.string())
            self.add(folder, SCHEMAS[folder].append(text).empty_table())
            for rows in batches(files, folder, damaged):
                self._connection.register("batch", rows)
                self._connection.execute(f"INSERT INTO {folder} SELECT * FROM batch")
                self._connection.unregister("batch")
            if damaged:  # if a part of a large file is damaged, none of the file counts
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
            if query.name in CENSUSES:
                numbers |= numbers_in(query.name, self.select(f"FROM {query.name}"))
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
