"""How many operations were pending, over time. The numbers are exact, however many operations overlap.

Each operation gives two events: +1 when it starts, -1 when it ends. If one starts in the microsecond in which another ends,
both were pending in it. Events are added up within each minute, which many tasks do in parallel; what was pending when a minute
began is the sum of all changes before it.

    events 3.2 s +1, 3.7 s +1, 5.1 s -1     second 3: base 0, peak 2, mean 0.8 + 0.3
                                            second 4: no event, base 2, peak 2, mean 2
                                            second 5: base 2, peak 2, mean 2 - 0.9

Seconds in which nothing happens share a row, so a year in which one operation waits costs a row or two.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from purgatory.pipeline.report._exchange import shard_of
from purgatory.pipeline.report._operations import Operations
from purgatory.pipeline.report._plan import MINUTE, SECOND, Ints, Window, coded, instants, named, summed, texts

SECONDS: Final = 60
"""In a minute."""
MINUTES: Final = 1 << 34
"""More than there are until the year 9999."""
SCHEMA: Final = pa.schema(
    [
        ("purgatory", pa.string()),
        ("second", pa.timestamp("us", "UTC")),
        ("seconds", pa.int64()),
        ("pending_max", pa.int64()),
        ("pending_mean", pa.float64()),
    ]
)
"""From the instant `second` on, for so many `seconds`: the most that were pending at any instant, and the mean."""


def events_left(operations: Operations) -> tuple[pa.Table, Any]:
    """The events: twice the microsecond, and one more for an end; so they sort starts before ends.

    Returns:
        purgatory, event; and the shard of each row.
    """
    at = np.concatenate((operations.begin, operations.end))
    purgatory = np.concatenate((operations.purgatory, operations.purgatory))
    event = at * 2 + np.repeat((0, 1), operations.count)
    table = pa.table({"purgatory": named(operations.purgatories, purgatory), "event": event})
    return table, np.array([shard_of(name) for name in operations.purgatories], np.int64)[purgatory] + at // MINUTE


def shard(purgatory: str, minute: int) -> int:
    """The shard of the events of a minute."""
    return shard_of(purgatory) + minute


def changes(operations: Operations) -> pa.Table:
    """How many more are pending after each minute than before it: purgatory, minute, change."""
    keys = [operations.purgatory * MINUTES + at // MINUTE for at in (operations.begin, operations.end)]
    key, place = np.unique(np.concatenate(keys), return_inverse=True)
    change = np.bincount(place, np.repeat((1, -1), operations.count), len(key)).astype(np.int64)
    return pa.table({"purgatory": texts(operations.purgatories, key // MINUTES), "minute": key % MINUTES, "change": change})


def bases(changed: list[pa.Table]) -> tuple[dict[tuple[str, int], int], pa.Table]:
    """How many were pending when each minute with events began, and the rows of the minutes without.

    Args:
        changed: what `changes` told of all operations.
    """
    rows = summed(changed, ["purgatory", "minute"]).sort_by([("purgatory", "ascending"), ("minute", "ascending")])
    purgatory, names = coded(rows["purgatory"])
    minute, change = rows["minute"].to_numpy(), rows["change"].to_numpy()
    after = np.cumsum(change)  # each purgatory ends with none, so the next begins with none
    base = dict(zip(zip(rows["purgatory"].to_pylist(), minute.tolist(), strict=True), (after - change).tolist(), strict=True))
    gap = np.append(minute[1:], 0) - minute - 1
    is_quiet = (after > 0) & (gap > 0)
    return base, _rows(names, purgatory[is_quiet], (minute[is_quiet] + 1) * SECONDS, gap[is_quiet] * SECONDS, after[is_quiet])


def pending(left: list[pa.Table], base: dict[tuple[str, int], int]) -> pa.Table:
    """The rows of the table, of some minutes.

    Args:
        left: all events of these minutes.
        base: how many were pending when each began.
    """
    if not left:
        return SCHEMA.empty_table()
    rows = pa.concat_tables(left)
    purgatory, names = coded(rows["purgatory"])
    event = rows["event"].to_numpy()
    order = np.argsort(event) if len(names) == 1 else np.lexsort((event, purgatory))
    purgatory, event = purgatory[order], event[order]
    at, delta = event // 2, 1 - 2 * (event % 2)
    second = at // SECOND
    starts = np.flatnonzero((np.diff(purgatory, prepend=-1) != 0) | (np.diff(second, prepend=-1) != 0))
    change = np.add.reduceat(delta, starts)
    weight = np.add.reduceat(delta * (SECOND - at % SECOND), starts)
    so_far = np.cumsum(delta)
    before = so_far[starts] - delta[starts]
    peak = np.maximum.reduceat(so_far, starts) - before
    purgatory, second = purgatory[starts], second[starts]
    minute = second // SECONDS
    is_first = (np.diff(purgatory, prepend=-1) != 0) | (np.diff(minute, prepend=-1) != 0)
    firsts = np.flatnonzero(is_first)
    at_first = np.array([base[names[purgatory[place]], int(minute[place])] for place in firsts], np.int64)
    now = (at_first - before[firsts])[np.cumsum(is_first) - 1] + before
    busy = pa.table(
        {
            "purgatory": texts(names, purgatory),
            "second": instants(second * SECOND),
            "seconds": np.ones(len(second), np.int64),
            "pending_max": now + np.maximum(peak, 0),
            "pending_mean": now + weight / SECOND,
        },
        schema=SCHEMA,
    )
    is_last = np.append(is_first[1:], True)
    until = np.where(is_last, (minute + 1) * SECONDS, np.append(second[1:], 0))
    after = now + change
    is_quiet = (after > 0) & (until - second > 1)
    later = _rows(names, purgatory[is_quiet], second[is_quiet] + 1, (until - second)[is_quiet] - 1, after[is_quiet])
    is_late = (at_first > 0) & (second[firsts] > minute[firsts] * SECONDS)
    late = firsts[is_late]
    earlier = _rows(names, purgatory[late], minute[late] * SECONDS, second[late] % SECONDS, at_first[is_late])
    return pa.concat_tables([busy, later, earlier])


def _rows(names: list[str], purgatory: Ints, second: Ints, seconds: Ints, count: Ints) -> pa.Table:
    """Rows of spans in which nothing happens."""
    times = {"purgatory": texts(names, purgatory), "second": instants(second * SECOND), "seconds": seconds}
    return pa.table({**times, "pending_max": count, "pending_mean": count.astype(float)}, schema=SCHEMA)


def points(rows: pa.Table, window: Window) -> pa.Table:
    """The rows as a person sees them: in each span of the window the most, and the sum of the means over its seconds.

    Returns:
        purgatory, place, most, area: one row for each purgatory and span, of those that these rows touch.
    """
    purgatory, names = coded(rows["purgatory"])
    start = rows["second"].cast(pa.int64()).to_numpy()
    end = start + rows["seconds"].to_numpy() * SECOND
    most, mean = rows["pending_max"].to_numpy(), rows["pending_mean"].to_numpy()
    peaks = np.zeros((len(names), window.count), np.int64)
    areas = np.zeros((len(names), window.count))
    first, last = window.places(start), window.places(end - 1)
    is_one = (first == last) & (first >= 0) & (first < window.count)
    np.maximum.at(peaks, (purgatory[is_one], first[is_one]), most[is_one])
    np.add.at(areas, (purgatory[is_one], first[is_one]), mean[is_one] * (end - start)[is_one] / SECOND)
    for row in np.flatnonzero((first != last) & (last >= 0) & (first < window.count)):
        spans = slice(max(first[row], 0), min(last[row], window.count - 1) + 1)
        edges = window.start + np.arange(spans.start, spans.stop + 1) * window.width
        lengths = np.diff(np.clip(edges, start[row], end[row]))
        peaks[purgatory[row], spans] = np.maximum(peaks[purgatory[row], spans], most[row])
        areas[purgatory[row], spans] += mean[row] * lengths / SECOND
    which, place = np.nonzero(peaks)
    return pa.table(
        {"purgatory": texts(names, which), "place": place, "most": peaks[which, place], "area": areas[which, place]}
    )


def peaks(rows: pa.Table) -> pa.Table:
    """For each purgatory the row with the most pending."""
    purgatory, names = coded(rows["purgatory"])
    most = rows["pending_max"].to_numpy()
    return rows.take(
        pa.array([int(np.argmax(np.where(purgatory == place, most, -1))) for place in range(len(names))], pa.int64())
    )
