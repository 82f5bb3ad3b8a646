"""The program ``report``: tables about the operations of journals, and a page that describes the
problems in words.

- ``rows.sql`` defines what is computed from rows, on DuckDB or Spark.
- ``report.sql`` computes the rest from those sums, on DuckDB.
- `_queries` reads both, and has the time and the lines that the page shows; `_duckdb` and `_spark`
  are the engines; `_tables` runs them and replaces the earlier report.
- `_findings` has the sentences, `_page` the page, and `_data` its numbers; the scripts and colours
  beside it do the rest.
"""
