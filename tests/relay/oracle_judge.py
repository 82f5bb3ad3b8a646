"""Judges the notes of processes: finds waits that were missed, ended early, or returned a version
that was never written.

It relies on the promises of relays alone. A process notes `[time, kind, key, ...]`; all times are
from one clock:

    [3.0, "wait", "a", 7, 2.9]      a wait for a version above 7, which was seen at 2.9, starts
    [3.4, "answer", "a", 8, 3.0]    the wait from 3.0 ends
    [3.1, "bump", "a"]              a write starts
    [3.2, "bumped", "a", 8, 3.1]    it got version 8; without this line it may have been made
    [3.5, "read", "a", 8, 3.3]      a read that started at 3.3

The injector of the faults notes the start and end of each. A fault that may lose writes starts a
new *era*: numbers are compared within one era only.
"""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any

Line = list[Any]
Notes = tuple[str, Sequence[Line], float]
"""Name, lines and end time of a process."""


@dataclass
class Fault:
    """A fault in the store, or in the process named `process`."""

    name: str
    begun: float
    ended: float
    is_lossy: bool = False
    """Whether it may lose writes."""
    is_new_epoch: bool = False
    """Whether it may end waits with a version that they had already seen."""
    process: str | None = None


@dataclass
class Verdict:
    """Counts of events and of errors; `wrong` is the sum of the errors and must be 0."""

    bumps: int = 0
    answers: int = 0
    reads: int = 0
    unknown: int = 0
    """Writes without an answer."""
    missed: int = 0
    """Waits that a later version did not end in time."""
    early: int = 0
    """Waits that returned the version they had seen, or a lower one, in the same epoch."""
    invented: int = 0
    """Answers that no process had written."""
    back: int = 0
    """Writes with a version at or below an earlier write's, and reads with a version below it."""
    twice: int = 0
    """Versions that two writes got."""
    deliveries: int = 0
    replies: int = 0
    """Values that a receive or a look returned."""
    settled_twice: int = 0
    unreceived: int = 0
    """Receives and looks that missed an existing reply."""
    overdue: int = 0
    """Values that were received after they had expired."""
    examples: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        of_versions = self.missed + self.early + self.invented + self.back + self.twice
        return of_versions + self.settled_twice + self.unreceived + self.overdue

    def add(self, name: str, *evidence: object) -> None:
        setattr(self, name, getattr(self, name) + 1)
        if len(self.examples) < 20:
            self.examples.append(f"{name}: {evidence}")


def lines_of(file: Path) -> list[Line]:
    """The notes of a process, without an incomplete last line."""
    *texts, last = file.read_text().split("\n")
    del last  # incomplete, or empty after a complete line
    return [json.loads(text) for text in texts]


@dataclass
class Bump:
    key: str
    version: int
    begun: float
    ended: float
    era: int | None = None


class Times:
    """The faults, and the deadlines and eras that follow from them."""

    def __init__(self, faults: Sequence[Fault], promise: float) -> None:
        self._faults = sorted(faults, key=lambda fault: fault.begun)
        self._lossy = [fault for fault in self._faults if fault.is_lossy]
        self._new_epochs = [fault for fault in self._faults if fault.is_new_epoch]
        self._promise = promise

    def era(self, begun: float, ended: float) -> int | None:
        """The era of an event that lasted from `begun` to `ended`; None if a fault may have lost
        its write."""
        before = sum(fault.ended < begun for fault in self._lossy)
        return before if before == sum(fault.begun <= ended for fault in self._lossy) else None

    def era_of_wait(self, begun: float) -> int:
        """The era of a wait that starts at `begun`."""
        return sum(fault.begun <= begun for fault in self._lossy)

    def deadline(self, process: str, since: float) -> float:
        """The latest time for an answer that has been possible since `since`."""
        deadline = since + self._promise
        for fault in self._faults:
            if fault.process in (None, process) and fault.begun < deadline and fault.ended > since:
                deadline = max(deadline, fault.ended + self._promise)
        return deadline

    def may_have_new_epoch(self, seen_at: float, ended: float) -> bool:
        return any(
            fault.begun < ended and fault.ended + self._promise > seen_at
            for fault in self._new_epochs
        )

    def first_loss(self, begun: float, ended: float) -> float:
        """Start of the first lossy fault during a wait; infinity without one."""
        return min(
            (fault.begun for fault in self._lossy if begun < fault.begun < ended), default=inf
        )


def judge(
    notes: Sequence[Notes], faults: Sequence[Fault], promise: float, forgets: bool
) -> Verdict:
    """The verdict on a run.

    Args:
        notes: The notes of all processes.
        faults: The injected faults.
        promise: Seconds for which a wait may outlive its version, or the end of a fault.
        forgets: Whether keys were forgotten, so that an answer may be the number of another key.
    """
    verdict, times = Verdict(), Times(faults, promise)
    bumps, attempts = bumps_of(notes, times)
    verdict.bumps, verdict.unknown = len(bumps), sum(map(len, attempts.values())) - len(bumps)
    judge_numbers(verdict, bumps)
    judge_reads(verdict, notes, bumps, times)
    judge_waits(verdict, notes, bumps, attempts, times, forgets)
    return verdict


def bumps_of(notes: Sequence[Notes], times: Times) -> tuple[list[Bump], dict[str, list[float]]]:
    """The writes with an answer, and the start times of all writes to each key."""
    bumps: list[Bump] = []
    attempts: dict[str, list[float]] = defaultdict(list)
    for _, lines, _ in notes:
        for at, kind, key, *rest in lines:
            if kind == "bump":
                attempts[key].append(at)
            elif kind == "bumped":
                version, begun = rest
                bumps.append(Bump(key, version, begun, at, times.era(begun, at)))
    return sorted(bumps, key=lambda bump: bump.ended), attempts


class Highest:
    """The highest version of a key over time, by its answered writes."""

    def __init__(self, bumps: Sequence[Bump]) -> None:
        self.ends = [bump.ended for bump in bumps]
        self.versions = list(accumulate((bump.version for bump in bumps), max))

    def before(self, time: float) -> int:
        position = bisect_right(self.ends, time)
        return self.versions[position - 1] if position else 0

    def first_above(self, seen: int) -> float:
        """Time of the first version above `seen`; infinity without one."""
        position = bisect_right(self.versions, seen)
        return self.ends[position] if position < len(self.ends) else inf


def by_era_and_key(bumps: Sequence[Bump]) -> dict[tuple[int, str], list[Bump]]:
    groups: dict[tuple[int, str], list[Bump]] = defaultdict(list)
    for bump in bumps:
        if bump.era is not None:
            groups[bump.era, bump.key].append(bump)
    return groups


def judge_numbers(verdict: Verdict, bumps: Sequence[Bump]) -> None:
    for (era, _), group in by_era_and_key(bumps).items():
        highest = Highest(group)
        given: set[int] = set()
        for bump in group:
            if bump.version in given:
                verdict.add("twice", era, bump)
            elif bump.version <= highest.before(bump.begun):
                verdict.add("back", era, bump)
            given.add(bump.version)


def judge_reads(
    verdict: Verdict, notes: Sequence[Notes], bumps: Sequence[Bump], times: Times
) -> None:
    highest = {place: Highest(group) for place, group in by_era_and_key(bumps).items()}
    for name, lines, _ in notes:
        for at, kind, key, *rest in lines:
            if kind == "read":
                version, begun = rest
                verdict.reads += 1
                era = times.era(begun, at)
                if (
                    era is not None
                    and (era, key) in highest
                    and version < highest[era, key].before(begun)
                ):
                    verdict.add("back", name, at, kind, key, version)


def judge_waits(
    verdict: Verdict,
    notes: Sequence[Notes],
    bumps: Sequence[Bump],
    attempts: dict[str, list[float]],
    times: Times,
    forgets: bool,
) -> None:
    highest = {place: Highest(group) for place, group in by_era_and_key(bumps).items()}
    possible = Possible(bumps, attempts, forgets)
    for name, lines, end in notes:
        open_waits: dict[str, Line] = {}
        for line in lines:
            at, kind, key, *rest = line
            if kind == "wait":
                open_waits[key] = line
            elif kind == "answer":
                verdict.answers += 1
                begun, _, _, seen, seen_at = open_waits.pop(key)
                version = rest[0]
                has_new_epoch = times.may_have_new_epoch(seen_at, at)
                if version <= seen and not has_new_epoch:
                    verdict.add("early", name, line, seen)
                if version > possible.highest(key, at) and version > 0 and not has_new_epoch:
                    verdict.add("invented", name, line, seen)
                judge_duration(verdict, name, key, seen, begun, at, highest, times)
        for key, (begun, _, _, seen, _) in open_waits.items():
            judge_duration(verdict, name, key, seen, begun, end, highest, times)


def judge_duration(
    verdict: Verdict,
    name: str,
    key: str,
    seen: int,
    begun: float,
    ended: float,
    highest: dict[tuple[int, str], Highest],
    times: Times,
) -> None:
    """Judges a wait that was open from `begun` to `ended`."""
    place = times.era_of_wait(begun), key
    exists_at = highest[place].first_above(seen) if place in highest else inf
    due = min(max(exists_at, begun), times.first_loss(begun, ended))
    if due >= ended:
        return
    if ended > times.deadline(name, due):
        verdict.add("missed", name, key, seen, begun, due, ended)


class Possible:
    """Upper bound of a key's version: the highest version of the writes started so far, plus one
    for each write without an answer."""

    def __init__(
        self, bumps: Sequence[Bump], attempts: dict[str, list[float]], forgets: bool
    ) -> None:
        self._forgets = forgets
        self._highest: dict[str, Highest] = {}
        self._unknown: dict[str, list[float]] = {}
        groups: dict[str, list[Bump]] = defaultdict(list)
        for bump in bumps:
            groups["" if forgets else bump.key].append(
                Bump(bump.key, bump.version, bump.begun, bump.begun)
            )
        begun: dict[str, list[float]] = defaultdict(list)
        for key, moments in attempts.items():
            begun["" if forgets else key] += moments
        for group, moments in begun.items():
            own = sorted(groups[group], key=lambda bump: bump.ended)
            answered = {bump.begun for bump in own}
            self._highest[group] = Highest(own)
            self._unknown[group] = sorted(moment for moment in moments if moment not in answered)

    def highest(self, key: str, time: float) -> int:
        group = "" if self._forgets else key
        if group not in self._highest:
            return 0
        return self._highest[group].before(time) + bisect_right(self._unknown[group], time)
