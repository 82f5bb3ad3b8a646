"""What expiry rate each timeout would have given.

An operation that expired after 2 s might have completed after 3 s, or never. We only know that its wait is longer than 2 s: it
is *censored*. If we left it out, long timeouts would look better than they are; if we took it for completed, short ones would.
The estimator of Kaplan and Meier (1958) uses just what is known. Take each wait t after which some operations completed: n
operations had waited at least so long, and d of them completed then. The share that would still be waiting is

    S(t) = product of (1 - d / n) over the waits up to t        what a timeout of t would have let expire
    SE(t) = S(t) * sqrt(sum of d / (n * (n - d)))               Greenwood (1926)

Cancelled operations and those without an end are censored, too. Beyond the longest wait nothing is known. If S has not fallen
to 1 % by then, this data cannot tell which timeout would let 1 % expire.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory.pipeline.report._exchange import shard_of
from purgatory.pipeline.report._operations import COMPLETED, Operations
from purgatory.pipeline.report._plan import SECOND, Ints, coded, rounded_up

RATES: Final = {"timeout_1_percent": 0.01, "timeout_01_percent": 0.001}
ROUNDING: Final = 1e-12
DIGITS: Final = 3
DIGITS_OF_RUNS: Final = 2
NOT_ANSWERABLE: Final = "not answerable from this data"
SCHEMA: Final = pa.schema(
    [
        ("purgatory", pa.string()),
        ("kind", pa.string()),
        ("timeout_s", pa.float64()),
        ("at_risk", pa.int64()),
        ("expiry_rate", pa.float64()),
        ("standard_error", pa.float64()),
    ]
)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Curve:
    """The Kaplan-Meier curve at each wait that occurred, in microseconds."""

    wait: Ints
    at_risk: Ints
    rate: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64]
    """NaN where the rate is zero."""


def waits_left(operations: Operations) -> tuple[pa.Table, Any]:
    """How many operations of each group and run waited how long. Those whose start is not known are left out.

    Returns:
        purgatory, kind, run, wait, operations, ends; and the shard of each row.
    """
    is_known = operations.has_start
    counts = pa.table(
        {
            "group": operations.group[is_known],
            "run": operations.run[is_known],
            "wait": operations.wait[is_known],
            "operations": np.ones(is_known.sum(), np.int64),
            "ends": (operations.outcome[is_known] == COMPLETED).astype(np.int64),
        }
    )
    counts = counts.group_by(["group", "run", "wait"]).aggregate([("operations", "sum"), ("ends", "sum")])
    group = counts["group"].to_numpy()
    columns = [counts[name] for name in ("run", "wait", "operations_sum", "ends_sum")]
    names = {name: pa.array(values).dictionary_encode().take(pa.array(group)) for name, values in _names(operations).items()}
    table = pa.table({**names, **dict(zip(("run", "wait", "operations", "ends"), columns, strict=True))})
    return table, np.array([shard_of(*each) for each in operations.groups], np.int64)[group]


def _names(operations: Operations) -> dict[str, list[str]]:
    return operations.names(range(len(operations.groups)))


def curve(wait: Ints, operations: Ints, ends: Ints) -> Curve:
    """The curve of some operations.

    Args:
        wait: in any order, also repeated.
        operations: how many waited so long.
        ends: how many of these completed then.
    """
    order = np.argsort(wait, kind="stable")
    wait = wait[order]
    starts = np.flatnonzero(np.diff(wait, prepend=-1))
    wait, operations, ends = wait[starts], np.add.reduceat(operations[order], starts), np.add.reduceat(ends[order], starts)
    at_risk = np.cumsum(operations[::-1])[::-1]
    left = at_risk - ends
    is_left = left > 0  # it is zero only at the end
    # A sum of logarithms is more exact than a running product.
    logarithm = np.cumsum(np.log1p(-ends / at_risk, where=is_left, out=np.zeros(len(wait))))
    variance = np.cumsum(np.divide(ends, at_risk.astype(float) * left, where=is_left, out=np.zeros(len(wait))))
    rate = np.where(is_left, np.exp(logarithm), 0.0)
    return Curve(wait, at_risk, rate, np.where(is_left, rate * np.sqrt(variance), np.nan))


def thinned(whole: Curve, digits: int = DIGITS) -> dict[str, pa.Array]:
    """The curve at timeouts of three digits, such as 1.23 s or 45.6 s: at most 900 points for each power of ten."""
    timeout = rounded_up(whole.wait, digits)
    last = np.flatnonzero(np.diff(timeout, append=-1))
    error = whole.error[last]
    return {
        "timeout_s": pa.array(timeout[last] / SECOND),
        "at_risk": pa.array(whole.at_risk[last]),
        "expiry_rate": pa.array(whole.rate[last]),
        "standard_error": pa.array(error, mask=np.isnan(error)),
    }


def answers(whole: Curve) -> Row:
    """Which timeouts would have let 1 % and 0.1 % expire, and how far the curve reaches."""
    found: Row = {
        "longest_wait_s": whole.wait[-1] / SECOND,
        "least_expiry_rate": float(whole.rate[-1]),
        "its_standard_error": None if np.isnan(whole.error[-1]) else float(whole.error[-1]),
    }
    for name, rate in RATES.items():
        is_reached = whole.rate <= rate + ROUNDING
        found[name] = float(whole.wait[np.argmax(is_reached)]) / SECOND if is_reached.any() else None
    return found


@dataclass(frozen=True, slots=True)
class Survival:
    """What a task found about the groups that came to it."""

    points: list[pa.Table]
    """For each group the rows of the table ``survival``."""
    of_runs: dict[tuple[str, str, int], pa.Table]
    """The curves of each run, with two digits, if a group has several."""
    answers: dict[tuple[str, str], Row]
    operations: int


def survival(left: list[pa.Table]) -> Survival:
    """The curves of all groups of a shard."""
    found = Survival([], {}, {}, sum(int(np.sum(table["operations"].to_numpy())) for table in left))
    if not found.operations:
        return found
    rows = pa.concat_tables(left)
    (purgatory, purgatories), (kind, kinds) = coded(rows["purgatory"]), coded(rows["kind"])
    wait, operations, ends = (rows[name].to_numpy() for name in ("wait", "operations", "ends"))
    runs = int(rows["run"].to_numpy().max()) + 1
    key = (purgatory * len(kinds) + kind) * runs + rows["run"].to_numpy()
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    slices = [(int(key[part[0]]), part) for part in np.split(order, starts[1:])]
    for pair, of_group in groupby(slices, lambda each: each[0] // runs):
        parts = list(of_group)
        names = {"purgatory": purgatories[pair // len(kinds)], "kind": kinds[pair % len(kinds)]}
        group = (names["purgatory"], names["kind"])
        places = np.concatenate([part for _, part in parts])
        whole = curve(wait[places], operations[places], ends[places])
        points = thinned(whole)
        constant = {name: pa.repeat(value, len(points["at_risk"])) for name, value in names.items()}
        found.points.append(pa.table({**constant, **points}, schema=SCHEMA))
        found.answers[group] = answers(whole)
        for number, part in parts if len(parts) > 1 else []:
            of_run = thinned(curve(wait[part], operations[part], ends[part]), DIGITS_OF_RUNS)
            found.of_runs[*group, number % runs] = pa.table(of_run)
    return found
