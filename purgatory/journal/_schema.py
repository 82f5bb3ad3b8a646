"""The schemas of a journal: Parquet files in the folders ``operations`` and ``checks`` of its
directory.

The folder ``runs`` has a file for each run that is in progress, or that has unwritten rows: see
`_run_counter`.

The schemas are the contract between writers and readers of journals. Instants are microseconds in
UTC.
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
        pa.field("failed_tries", pa.int64(), nullable=False),
        pa.field("ended_by", pa.string()),
        pa.field("missed_trigger", pa.bool_(), nullable=False),
    ]
)
"""One row for each operation.

- `run_id`, `operation_id`: together they identify the operation; the ids of a run count up from 0,
  so a gap means lost rows.
- `kind`: see `Ended.kind`. `purgatory`: the name. `keys`: as strings.
- `started_at`: null if it started before the journal did. `ended_at`, `outcome`: null if its end
  was not written.
- `timeout_s`: null without a deadline. `outcome`: completed, expired or cancelled.
- `failed_tries`: the number of tries that failed. `ended_by`: the key, if a check of it completed
  the operation, or null.
- `missed_trigger`: whether the try at its deadline completed it.
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
"""One row for each key, second and file in which a check found waiters: the number of checks, and
of the operations that they tried and completed.

- `part`: the number of the file in its run. A second during which a file was finished has a row in
  that file and one in the next; add them up. So `run_id`, `purgatory`, `key`, `second` and `part`
  identify a row: two rows with the same values are copies.
"""

FOLDERS: Final = {"operations": OPERATIONS, "checks": CHECKS}
"""The folders of a journal's directory."""

RUNS: Final = "runs"
"""The folder of run counters. A file is named by its `run_id`; its one line is the number of
operations that have ended in the run."""
