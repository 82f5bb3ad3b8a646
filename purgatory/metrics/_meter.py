"""The meter: an observer that counts. It keeps integers, and reports when it is asked.

What it keeps is a list of numbers for each purgatory, kind and cause, and nothing of any single operation or key:

    ("jobs", "Fetch", KEY)        how many waited up to 1 ms, 2 ms, 4 ms, ... 262 s, longer      seconds in all

How many there were is the sum of that list, so that an operation costs one count and one addition.
"""

from bisect import bisect_left
from collections.abc import Hashable
from types import MappingProxyType
from typing import Any, final

from purgatory import Cause, Ended, OperationState
from purgatory.metrics._snapshot import LATENESS_BOUNDS, WAIT_BOUNDS, Histogram, KindMetrics


@final
class Meter:
    """Counts what ends, and how long it took: give it to any number of purgatories as their observer.

        meter = Meter()
        jobs = Purgatory("jobs", observer=meter)
        orders = Purgatory("orders", observer=meter)

    For the purgatories of one event loop, and as many meters as one likes. It may be read from any thread, and needs no extra.
    """

    def __init__(self) -> None:
        self._waits: dict[tuple[str, str, OperationState, Cause], list[Any]] = {}
        self._lateness: dict[tuple[str, str], list[Any]] = {}
        self._retries: dict[tuple[str, str], int] = {}

    def operation_ended(self, ended: Ended) -> None:
        """Counts it."""
        kind = ended.purgatory, ended.kind
        cell = self._waits.setdefault((*kind, ended.state, ended.cause), [0] * len(WAIT_BOUNDS) + [0.0])
        waited = ended.ended_at - ended.started_at
        cell[bisect_left(WAIT_BOUNDS, waited)] += 1
        cell[-1] += waited
        retries = ended.failed_tries - 1
        if ended.cause is Cause.DEADLINE and ended.timeout is not None:
            late = max(waited - max(ended.timeout, 0.0), 0.0)
            cell = self._lateness.setdefault(kind, [0] * len(LATENESS_BOUNDS) + [0.0])
            cell[bisect_left(LATENESS_BOUNDS, late)] += 1
            cell[-1] += late
            retries -= ended.state is OperationState.EXPIRED
        if retries > 0:
            self._retries[kind] = self._retries.get(kind, 0) + retries

    def key_checked(self, key: Hashable, tried: int, completed: int) -> None:
        """Counts nothing: a check does not say in which purgatory it was made."""

    def snapshot(self) -> tuple[KindMetrics, ...]:
        """What was counted so far, by purgatory and kind, in order of their names. Cost: that of their number alone."""
        waits, lateness, retries = dict(self._waits), dict(self._lateness), dict(self._retries)
        outcomes: dict[tuple[str, str], dict[tuple[OperationState, Cause], list[Any]]] = {}
        for (purgatory, kind, state, cause), cell in waits.items():
            outcomes.setdefault((purgatory, kind), {})[state, cause] = list(cell)
        nothing = [0] * len(LATENESS_BOUNDS) + [0.0]
        return tuple(
            _metrics_of(names, cells, list(lateness.get(names, nothing)), retries.get(names, 0))
            for names, cells in sorted(outcomes.items())
        )


def _metrics_of(
    names: tuple[str, str], cells: dict[tuple[OperationState, Cause], list[Any]], lateness: list[Any], retries: int
) -> KindMetrics:
    waits: dict[OperationState, list[Any]] = {}
    for (state, cause), cell in cells.items():
        if cause is not Cause.FIRST_TRY:
            known = waits.get(state)
            waits[state] = cell if known is None else [one + other for one, other in zip(known, cell, strict=True)]
    outcomes = {how: sum(cell[:-1]) for how, cell in cells.items()}
    return KindMetrics(
        *names,
        MappingProxyType(outcomes),
        MappingProxyType({state: Histogram(WAIT_BOUNDS, tuple(cell[:-1]), cell[-1]) for state, cell in waits.items()}),
        Histogram(LATENESS_BOUNDS, tuple(lateness[:-1]), lateness[-1]),
        outcomes.get((OperationState.COMPLETED, Cause.DEADLINE), 0),
        retries,
    )
