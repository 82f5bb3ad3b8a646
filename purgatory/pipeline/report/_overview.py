"""What a page shows of the operations besides the tables: sums over purgatory, kind, run and time. They stay small, however
many operations there are, because each of these has few different values.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from purgatory.pipeline.report._operations import NO_END, Operations
from purgatory.pipeline.report._plan import Ints, Plan, distinct, summed

OUTCOMES = ("completed", "expired", "cancelled")


def kinds(operations: Operations) -> pa.Table:
    """For each purgatory and kind: how its operations ended, and their timeouts."""
    count, group = len(operations.groups), operations.group

    def counted(which: Any) -> Ints:
        return np.bincount(group[which], minlength=count).astype(np.int64)

    least, most = np.full(count, np.inf), np.full(count, -np.inf)
    has_timeout = ~np.isnan(operations.timeout)
    np.minimum.at(least, group[has_timeout], operations.timeout[has_timeout])
    np.maximum.at(most, group[has_timeout], operations.timeout[has_timeout])
    return pa.table(
        {
            **operations.names(range(count)),
            "operations": counted(slice(None)),
            **{name: counted(operations.outcome == number) for number, name in enumerate(OUTCOMES)},
            "without_end": counted(operations.outcome == NO_END),
            "without_start": counted(~operations.has_start),
            "missed_triggers": counted(operations.is_missed),
            "timeout_min_s": pa.array(least, mask=np.isinf(least)),
            "timeout_max_s": pa.array(most, mask=np.isinf(most)),
        }
    )


def all_kinds(found: list[pa.Table]) -> pa.Table:
    """The sums of what `kinds` found in all pieces."""
    by = ["purgatory", "kind"]
    rows = pa.concat_tables(found)
    timeouts = {"timeout_min_s": "min", "timeout_max_s": "max"}
    sums = summed([rows.drop_columns([*timeouts])], by)
    bounds = rows.group_by(by).aggregate([*timeouts.items()])
    bounds = bounds.rename_columns([name.replace("_s_min", "_s").replace("_s_max", "_s") for name in bounds.column_names])
    return sums.join(bounds, by).sort_by([(name, "ascending") for name in by])


def timeline(operations: Operations, plan: Plan) -> pa.Table:
    """purgatory, kind, run, place (a span of the window): how many started, ended and how, and missed their trigger.

    `begun` and `finished` are what counts for what is pending: also those whose start or end was not written.
    """
    window = plan.window
    begin, end = window.places(operations.begin), window.places(operations.end)
    runs, spans = len(plan.runs) + 1, window.count + 2
    first = (operations.group * runs + operations.run) * spans + 1
    columns = {
        "begun": (first + begin, slice(None)),
        "finished": (first + end, slice(None)),
        "started": (first + begin, operations.has_start),
        **{name: (first + end, operations.outcome == number) for number, name in enumerate(OUTCOMES)},
        "missed": (first + end, operations.is_missed & operations.has_end),
    }
    cells, _ = distinct(np.concatenate((first + begin, first + end)))
    counts = {
        name: np.bincount(np.searchsorted(cells, key[which]), minlength=len(cells)) for name, (key, which) in columns.items()
    }
    names = operations.names(cells // spans // runs)
    places = {"run": cells // spans % runs, "place": cells % spans - 1}
    return pa.table({**names, **places, **counts})
