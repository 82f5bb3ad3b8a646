"""The program ``report``: tables about the operations of journals, and a page that says in words what is wrong.

`_make` writes the tables, which `_tables`, `_pending` and `_survival` compute on Spark; `_summary` collects what a person can
look at; `_findings`, `_plots` and `_page` show it.
"""
