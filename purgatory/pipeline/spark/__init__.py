"""The report as a library for PySpark: DataFrames in, DataFrames out.

    journal = read_journal(spark, "hdfs://namenode/journal")
    made = report(journal.operations, journal.checks)
    made.keys.write.mode("overwrite").saveAsTable("purgatory.keys")

Everything that touches rows runs in Spark itself, without Python on its workers. The session is the
caller's: no setting is changed, no view is left, nothing is stopped. It may be one of Spark
Connect.

- `_journal` reads a journal, and sets damaged files apart.
- `_sums` runs the queries of ``report/rows.sql``, as DuckDB does; `_report` has the tables.
"""

from purgatory.pipeline.spark._journal import Journal, read_journal
from purgatory.pipeline.spark._report import Report, report

__all__ = ["Journal", "Report", "read_journal", "report"]
