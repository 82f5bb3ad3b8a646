"""What happened in a purgatory, written to Parquet files while it happens. Comes with the extra ``journal``.

    loop's thread    Journal    an operation has ended: a tuple joins a queue, and that is all
    its own thread   Writer     queue -> rows -> one file at a time, renamed into place when it is whole

`OPERATIONS` and `CHECKS` are the schemas of the rows.
"""

try:
    import pyarrow as _pyarrow  # noqa: F401  (only to fail here, with a message that helps)
except ImportError as error:
    raise ImportError("purgatory.journal writes Parquet: pip install 'asyncio-purgatory[journal]'") from error

from purgatory.journal._journal import Journal
from purgatory.journal._schema import CHECKS, FOLDERS, OPERATIONS, RUNS
from purgatory.journal._writer import JournalStatistics

__all__ = ["CHECKS", "FOLDERS", "OPERATIONS", "RUNS", "Journal", "JournalStatistics"]
