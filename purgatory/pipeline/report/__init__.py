"""The program ``report``: tables about the operations of journals, and a page that says in words what is wrong.

- `_make` writes the tables: tasks over pieces of the journal, then tasks over shards. `_exchange` is what goes between them.
- `_operations` has the operations of a piece as arrays. `_outcomes`, `_keys`, `_pending` and `_survival` have a table each:
  what it takes from a piece, and what it makes of a shard. `_overview` and `_durations` have sums that stay small;
  `_plan` is for all tasks.
- `_summary` is what a person can look at, `_window` the time and the runs that fit; `_findings` says it in words.
- `_page` is the page: `_data` has its numbers; the scripts and colours beside it do the rest.
"""
