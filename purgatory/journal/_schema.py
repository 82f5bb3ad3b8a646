"""What a journal consists of: two kinds of Parquet files, in the folders ``operations`` and ``checks`` of its directory.

The folder ``runs`` has a file for each run that is in progress, or that left something unwritten: see `_run_counter`.

These schemas are the contract between the writers and the readers of journals. Instants are microseconds in UTC.
"""

from typing import Final

import pyarrow as pa

INSTANT: Final = pa.timestamp("us", "UTC")

OPERATIONS: Final = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("purgatory", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("operation_id", pa.int64(), nullable=False),
        pa.field("keys", pa.list_(pa.string()), nullable=False),
        pa.field("started_at", INSTANT),
        pa.field("ended_at", INSTANT),
        pa.field("timeout_s", pa.float64()),
        pa.field("outcome", pa.string()),
        pa.field("attempts", pa.int64(), nullable=False),
        pa.field("ended_by", pa.string()),
        pa.field("missed_trigger", pa.bool_(), nullable=False),
    ]
)
"""One row for each operation.

- `run_id`, `operation_id`: together they identify the operation; the ids of a run count up from 0, so a gap means lost rows.
- `kind`: the class. `purgatory`: the name. `keys`: as strings.
- `started_at`: null if it started before the journal did. `ended_at`, `outcome`: null if its end was not written.
- `timeout_s`: null for no deadline. `outcome`: completed, expired or cancelled.
- `attempts`: how often its condition was tried. `ended_by`: the key whose check completed it, if a check did.
- `missed_trigger`: it was completed by the try at its deadline.
"""

CHECKS: Final = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("purgatory", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("second", INSTANT, nullable=False),
        pa.field("checks", pa.int64(), nullable=False),
        pa.field("tried", pa.int64(), nullable=False),
        pa.field("completed", pa.int64(), nullable=False),
        pa.field("part", pa.int64(), nullable=False),
    ]
)
"""One row for each key, second and file, if a check found waiters: how many checks, and what they tried and completed.

- `part`: the number of the file in its run. A second during which a file was finished has a row in that file and one in the
  next; add them up. So a row is identified by `run_id`, `purgatory`, `key`, `second` and `part`: two with the same values are
  copies. Journals of earlier versions have no such column; readers use 0.
"""

FOLDERS: Final = {"operations": OPERATIONS, "checks": CHECKS}
"""The folders of a journal's directory."""

RUNS: Final = "runs"
"""The folder of files that are named by their `run_id`, and contain one line: how many operations have ended in that run."""
