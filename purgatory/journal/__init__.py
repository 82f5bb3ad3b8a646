"""Writes the operations and checks of a purgatory to Parquet files. Needs the extra ``journal``.

    loop's thread    Journal    an operation has ended: its fields are appended to a queue
    own thread       Writer     queue -> rows -> one file at a time, renamed when it is complete

`OPERATIONS` and `CHECKS` are the schemas of the rows.
"""

from purgatory._core.errors import how_to_install as _how_to_install

try:
    import pyarrow as _pyarrow  # noqa: F401  (only to fail here, with a helpful message)
except ImportError as error:
    raise ImportError(f"purgatory.journal writes Parquet: {_how_to_install('journal')}") from error

from purgatory.journal._journal import Journal
from purgatory.journal._schema import CHECKS, FOLDERS, OPERATIONS, RUNS
from purgatory.journal._writer import JournalStatistics

__all__ = ["CHECKS", "FOLDERS", "OPERATIONS", "RUNS", "Journal", "JournalStatistics"]
