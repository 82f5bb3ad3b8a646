"""The tables of a report, computed the simple way: plain Python over lists of dictionaries, with
exact fractions."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import groupby
from math import sqrt
from typing import Any

SECOND = 1_000_000
EDGES = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def micros(instant: datetime | None) -> int | None:
    return None if instant is None else (instant - EPOCH) // timedelta(microseconds=1)


def with_times(rows: Iterable[Row]) -> list[Row]:
    """The rows with `start`, `end`, `wait`, and the bounds of their runs, in microseconds."""
    rows = [
        row | {"start": micros(row["started_at"]), "end": micros(row["ended_at"])} for row in rows
    ]
    times: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        times[row["run_id"]] += [time for time in (row["start"], row["end"]) if time is not None]
    bounds = {run: (min(known), max(known)) for run, known in times.items()}
    for row in rows:
        row["first"], row["last"] = bounds[row["run_id"]]
        known = row["start"] is not None and row["end"] is not None
        row["wait"] = row["end"] - row["start"] if known else None
    return rows


def percentile(ordered: list[int], share: Fraction) -> float:
    """Between the closest ranks."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (place - low) * (ordered[high] - ordered[low])) / SECOND


def outcomes(rows: list[Row]) -> dict[tuple, tuple]:
    minute = lambda time: time // (60 * SECOND)  # noqa: E731
    started: Counter[tuple] = Counter()
    ended: dict[tuple, Counter[str]] = defaultdict(Counter)
    waits: dict[tuple, list[int]] = defaultdict(list)
    for row in rows:
        name = (row["purgatory"], row["kind"])
        if row["start"] is not None:
            started[*name, minute(row["start"])] += 1
        if row["end"] is not None:
            ended[*name, minute(row["end"])][row["outcome"]] += 1
            if row["wait"] is not None:
                waits[*name, minute(row["end"])].append(row["wait"])
    table = {}
    for name in started.keys() | ended.keys():
        counts, ordered = ended[name], sorted(waits[name])
        shares = (Fraction(*each) for each in ((1, 2), (9, 10), (99, 100), (999, 1000), (1, 1)))
        percentiles = [percentile(ordered, share) if ordered else None for share in shares]
        rate = counts["expired"] / counts.total() if counts else None
        table[name] = (
            started[name], counts["completed"], counts["expired"], counts["cancelled"], rate, *percentiles
        )  # fmt: skip
    return table


def keys(rows: list[Row], checks: list[Row]) -> dict[tuple, tuple]:
    table: dict[tuple, list[int]] = defaultdict(lambda: [0] * 6)
    for row in rows:
        for key in set(row["keys"]):
            line = table[row["purgatory"], key]
            line[0] += 1
            line[5] += row["missed_trigger"]
    for row in checks:
        line = table[row["purgatory"], row["key"]]
        line[1] += row["checks"]
        line[2] += row["tried"]
        line[3] += row["completed"]
        line[4] += row["tried"] - row["completed"]
    return {name: tuple(line) for name, line in table.items()}


def pending(rows: list[Row]) -> dict[tuple, tuple]:
    """Event by event, over each purgatory's whole life."""
    events: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        start = row["first"] if row["start"] is None else row["start"]
        end = row["last"] if row["end"] is None else row["end"]
        events[row["purgatory"]] += [(start, -1), (end, 1)]  # starts before ends
    most: dict[tuple, int] = {}
    area: dict[tuple, int] = defaultdict(int)
    for purgatory, changes in events.items():
        now, since = 0, 0
        for time, change in sorted(changes):
            while now and since < time:  # operations stayed pending until then, second by second
                second = since // SECOND
                until = min(time, (second + 1) * SECOND)
                most[purgatory, second] = max(most.get((purgatory, second), 0), now)
                area[purgatory, second] += now * (until - since)
                since = until
            since = time
            second = time // SECOND
            most[purgatory, second] = max(most.get((purgatory, second), 0), now)
            now -= change
            most[purgatory, second] = max(most[purgatory, second], now)
    return {name: (peak, area[name] / SECOND) for name, peak in most.items()}


def curve(waits: Iterable[tuple[int, bool]]) -> list[tuple[int, int, Fraction, float | None]]:
    """Kaplan and Meier's, by fractions: wait, at risk, share that is left, Greenwood's standard
    error."""
    ordered = sorted(waits)
    at_risk, left, variance = len(ordered), Fraction(1), Fraction(0)
    points = []
    for wait, group in groupby(ordered, lambda each: each[0]):
        ends = [is_end for _, is_end in group]
        completed = sum(ends)
        left *= 1 - Fraction(completed, at_risk)
        if completed < at_risk:
            variance += Fraction(completed, at_risk * (at_risk - completed))
        points.append((wait, at_risk, left, float(left) * sqrt(variance) if left else None))
        at_risk -= len(ends)
    return points


def curves(rows: list[Row]) -> dict[tuple, list[tuple[int, int, Fraction, float | None]]]:
    waits: dict[tuple, list[tuple[int, bool]]] = defaultdict(list)
    for row in rows:
        if row["start"] is not None:
            wait = row["last"] - row["start"] if row["wait"] is None else row["wait"]
            waits[row["purgatory"], row["kind"]].append((wait, row["outcome"] == "completed"))
    return {name: curve(of_kind) for name, of_kind in waits.items()}


def step_of(wait: int) -> int:
    """The step of a wait: ten to a power of ten, starting at `EDGES`; a second has step 0."""
    wait = max(wait, 1)
    power = len(str(wait)) - 1
    lead = wait * 10 // 10**power
    return min(
        10 * power - 60 + max(number for number, edge in enumerate(EDGES) if edge <= lead), 79
    )
