"""What the report shows of its tables: no more than a person can look at, however large the tables are."""

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from purgatory.pipeline._reading import Account
from purgatory.pipeline.report import _keys, _outcomes, _overview, _pending, _survival
from purgatory.pipeline.report._plan import SECOND, Plan, Window, instants, summed

pc: Final[Any] = pyarrow.compute

Line = dict[str, Any]
"""A row of a table, by the names of its columns."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What a task added up: the part of it that a person can look at, and counts that prove the rest."""

    worst: pa.Table
    """Of the table ``outcomes``."""
    keys: _keys.Keys
    survival: _survival.Survival
    points: pa.Table
    peaks: pa.Table
    """The rows of the table ``pending`` with the most, one for each purgatory."""
    counted: dict[str, int]


@dataclass(frozen=True, slots=True)
class Summary:
    """The lines of the tables that are shown, and what only the page has."""

    timeouts: list[Line]
    survival: list[Line]
    waits: list[pa.Table]
    """See `_durations.waits`: what each task told."""
    pending: list[Line]
    """purgatory, second, pending_max, pending_mean: for the spans of the window in which any operation was pending."""
    peaks: list[Line]
    """purgatory, second, pending_max: when the most were pending."""
    hot_keys: list[Line]
    missed_keys: list[Line]
    worst_minutes: list[Line]
    reconciliation: list[Line]
    timeline: list[Line]
    """See `_overview.timeline`."""
    lateness: list[pa.Table]
    """See `_durations.lateness`."""
    hot_times: list[Line]
    """purgatory, key, place, tried, completed."""
    missed_times: list[Line]
    """purgatory, key, place, missed."""
    curves_of_runs: dict[tuple[str, str, int], pa.Table]
    runs: list[str]
    window: Window


TIMEOUTS: Final = (
    "purgatory", "kind", "operations", "completed", "expired", "cancelled", "without_end", "without_start", "missed_triggers",
    "timeout_min_s", "timeout_max_s", "longest_wait_s", "least_expiry_rate", "its_standard_error", "timeout_1_percent",
    "timeout_01_percent", "expiry_rate", "answer_1_percent", "answer_01_percent",
)  # fmt: skip
TEXTS: Final = ("purgatory", "kind", "answer_1_percent", "answer_01_percent")


def timeouts_of(sums: dict[str, list[pa.Table]], shards: list[Shard]) -> pa.Table:
    """For each purgatory and kind: how its operations ended, and which timeouts would have let 1 % and 0.1 % expire."""
    answers = {group: row for shard in shards for group, row in shard.survival.answers.items()}
    lines = []
    for counts in _overview.all_kinds(sums["kinds"]).to_pylist() if "kinds" in sums else []:
        ended = counts["completed"] + counts["expired"] + counts["cancelled"]
        line = {**dict.fromkeys(TIMEOUTS), **counts, **answers.get((counts["purgatory"], counts["kind"]), {})}
        line["expiry_rate"] = counts["expired"] / ended if ended else None
        for name in _survival.RATES:
            line[name.replace("timeout", "answer")] = _survival.NOT_ANSWERABLE if line[name] is None else "answered"
        lines.append(line)
    fields = [
        (name, pa.string() if name in TEXTS else pa.int64() if name in TIMEOUTS[2:9] else pa.float64()) for name in TIMEOUTS
    ]
    return pa.Table.from_pylist(lines, pa.schema(fields))


def summary_of(
    plan: Plan,
    sums: dict[str, list[pa.Table]],
    shards: list[Shard],
    timeouts: pa.Table,
    survival: pa.Table,
    quiet: pa.Table,
    account: list[Account],
) -> Summary:
    """Puts together what the tasks told."""
    groups = [("purgatory", "ascending"), ("kind", "ascending")]
    by_key = [("purgatory", "ascending"), ("key", "ascending")]
    hot = pa.concat_tables([shard.keys.hot for shard in shards])
    hot = hot.sort_by([("tried", "descending"), ("operations", "descending"), *by_key]).slice(0, _keys.SHOWN)
    missed = pa.concat_tables([shard.keys.missed for shard in shards])
    missed = missed.sort_by([("missed_triggers", "descending"), *by_key]).slice(0, _keys.SHOWN)
    peaks = pa.concat_tables([*(shard.peaks for shard in shards), _pending.peaks(quiet)])
    return Summary(
        timeouts=timeouts.sort_by([("expired", "descending"), *groups]).to_pylist(),
        survival=survival.sort_by([*groups, ("timeout_s", "ascending")]).to_pylist(),
        waits=sums.get("waits", []),
        pending=_points([*(shard.points for shard in shards), _pending.points(quiet, plan.window)], plan.window),
        peaks=_pending.peaks(peaks).to_pylist(),
        hot_keys=hot.to_pylist(),
        missed_keys=missed.to_pylist(),
        worst_minutes=_outcomes.worst(pa.concat_tables([shard.worst for shard in shards])).to_pylist(),
        reconciliation=[
            {"place": place, "folder": each.folder, "what": each.what, "reason": each.reason, "count": each.count}
            for place, each in enumerate(account)
        ],
        timeline=_all(sums, "timeline", ["purgatory", "kind", "run", "place"]),
        lateness=sums.get("lateness", []),
        hot_times=_of_keys([shard.keys.hot_times for shard in shards], hot),
        missed_times=_of_keys([shard.keys.missed_times for shard in shards], missed),
        curves_of_runs={group: curve for shard in shards for group, curve in shard.survival.of_runs.items()},
        runs=plan.runs,
        window=plan.window,
    )


def _all(sums: dict[str, list[pa.Table]], name: str, by: list[str]) -> list[Line]:
    if name not in sums:
        return []
    lines: list[Line] = summed(sums[name], by).sort_by([(each, "ascending") for each in by]).to_pylist()
    return lines


def _of_keys(times: list[pa.Table], keys: pa.Table) -> list[Line]:
    wanted = {(line["purgatory"], line["key"]) for line in keys.select(["purgatory", "key"]).to_pylist()}
    lines = pa.concat_tables(times).sort_by([(name, "ascending") for name in ("purgatory", "key", "place")]).to_pylist()
    return [line for line in lines if (line["purgatory"], line["key"]) in wanted]


def _points(points: list[pa.Table], window: Window) -> list[Line]:
    rows = pa.concat_tables(points).group_by(["purgatory", "place"]).aggregate([("most", "max"), ("area", "sum")])
    rows = rows.sort_by([("purgatory", "ascending"), ("place", "ascending")])
    start = window.start + rows["place"].to_numpy() * window.width
    columns = {"second": instants(start), "pending_max": rows["most_max"]}
    mean = pc.divide(rows["area_sum"], window.width / SECOND)
    lines: list[Line] = pa.table({"purgatory": rows["purgatory"], **columns, "pending_mean": mean}).to_pylist()
    return lines
