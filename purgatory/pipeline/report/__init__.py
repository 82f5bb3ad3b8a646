"""The program ``report``: tables about the operations of journals, and a page that describes the
problems in words.

- ``rows.sql`` defines what is computed from rows, on DuckDB or Spark.
- ``report.sql`` computes the rest from those sums, on DuckDB.
- `_queries` reads both; `_duckdb` and `_spark` are the engines; `_tables` runs them and replaces
  the earlier report.
- `_summary` has the lines that the page shows, `_window` the time that fits, `_durations` the
  waits; `_findings` the sentences.
- `_page` is the page: `_data` has its numbers; the scripts and colours beside it do the rest.
"""
