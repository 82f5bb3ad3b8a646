"""The program ``report``: tables about the operations of journals, and a page that says in words what is wrong.

- ``report.sql`` defines every table and every sum that the page shows. Read it first.
- `_queries` reads it; `_duckdb` and `_spark` are the engines that run it; `_make` feeds them and writes the tables.
- `_summary` is what a person can look at, `_window` the time that fits, `_durations` the waits; `_findings` says it in words.
- `_page` is the page: `_data` has its numbers; the scripts and colours beside it do the rest.
"""
