"""Which files of a journal can be read. Spark's executors look at them, because perhaps only they can see the files.

This module is sent to the executors as it is, so it imports nothing else of this package.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

FOOTERS = "path string, rows long, reason string"
"""The columns of what `footers` returns. `reason` says why a file cannot be read, and is null if it can."""


def footers(batches: Iterator[pa.RecordBatch], wanted: dict[str, str]) -> Iterator[pa.RecordBatch]:
    """Reads the footer of each file of the column ``path``.

    Args:
        wanted: the columns that a file must have, and their types.
    """
    for batch in batches:
        rows = [_footer(path, wanted) for path in batch.column("path").to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, pa.schema({"path": pa.string(), "rows": pa.int64(), "reason": pa.string()}))


def _footer(path: str, wanted: dict[str, str]) -> dict[str, Any]:
    rows, reason = None, None
    try:
        with _opened(path) as file:
            parquet = pq.ParquetFile(file)
            rows = parquet.metadata.num_rows
            found = {field.name: type_name(field.type) for field in parquet.schema_arrow}
    except Exception as error:
        reason = f"not a Parquet file: {str(error).splitlines()[0]}"
    else:
        wrong = [(name, found.get(name), type_) for name, type_ in wanted.items() if found.get(name) != type_]
        if wrong:
            name, is_, should_be = wrong[0]
            reason = f"column {name} is {is_}, not {should_be}" if is_ else f"has no column {name}"
    return {"path": path, "rows": rows, "reason": reason}


def _opened(path: str) -> Any:
    if path.startswith("file:"):
        return Path("/" + path.removeprefix("file:").lstrip("/")).open("rb")
    filesystem, name = pyarrow.fs.FileSystem.from_uri(path)
    return filesystem.open_input_file(name)


def type_name(type_: pa.DataType) -> str:
    """The name of a type. Variants that are the same in a file have the same name."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"list<{type_name(type_.value_type)}>"
    return "string" if pa.types.is_large_string(type_) else str(type_)
