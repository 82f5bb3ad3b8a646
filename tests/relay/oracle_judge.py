"""What the oracle makes of the notes of processes: whether a wait was missed, early, or answered with what nobody had written.

It knows nothing of relays but what they promise. A process notes `[time, kind, key, ...]`, with times of one clock:

    [3.0, "wait", "a", 7, 2.9]      a wait for a later version than 7, which had been seen at 2.9, begins
    [3.4, "answer", "a", 8, 3.0]    it has ended, and had begun at 3.0
    [3.1, "bump", "a"]              a write begins
    [3.2, "bumped", "a", 8, 3.1]    it was given version 8; without this line it was perhaps made
    [3.5, "read", "a", 8, 3.3]      a read that began at 3.3

Whoever injects the faults notes when each began and ended. One that may lose what was written divides the time into *eras*:
numbers are compared within one of them.
"""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any

Line = list[Any]
Notes = tuple[str, Sequence[Line], float]
"""Of a process: its name, its lines, and when it has ended."""


@dataclass
class Fault:
    """Something that was done to the store, or to the process of that name."""

    name: str
    begun: float
    ended: float
    is_lossy: bool = False
    """Whether what was written may be lost by it."""
    is_new_epoch: bool = False
    """Whether waits may end with a version that was seen before."""
    process: str | None = None


@dataclass
class Verdict:
    """Counts; those from `missed` on must be 0."""

    bumps: int = 0
    answers: int = 0
    reads: int = 0
    unknown: int = 0
    """Writes that had no answer."""
    missed: int = 0
    """Waits that were not answered in time, though a later version was there."""
    early: int = 0
    """Waits that were answered with what they had seen, or less, in one epoch."""
    invented: int = 0
    """Answers that nobody had written."""
    back: int = 0
    """Writes and reads whose version was not above, or below, that of an earlier write."""
    twice: int = 0
    """Versions that were given to two writes."""
    longest: float = 0.0
    """Seconds from a write, or from the beginning of a wait if that was later, to the answer; without faults in between."""
    examples: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        return self.missed + self.early + self.invented + self.back + self.twice

    def add(self, name: str, *evidence: object) -> None:
        setattr(self, name, getattr(self, name) + 1)
        if len(self.examples) < 20:
            self.examples.append(f"{name}: {evidence}")


COUNTED = [each.name for each in fields(Verdict) if each.name != "examples"]


def lines_of(file: Path) -> list[Line]:
    """The notes of a process, the last line of which may be incomplete."""
    *texts, last = file.read_text().split("\n")
    del last  # empty, if the line before it is complete
    return [json.loads(text) for text in texts]


@dataclass
class Bump:
    key: str
    version: int
    begun: float
    ended: float
    era: int | None = None


class Times:
    """The faults, and what was to be expected when."""

    def __init__(self, faults: Sequence[Fault], promise: float) -> None:
        self._faults = sorted(faults, key=lambda fault: fault.begun)
        self._lossy = [fault for fault in self._faults if fault.is_lossy]
        self._new_epochs = [fault for fault in self._faults if fault.is_new_epoch]
        self._promise = promise

    def era(self, begun: float, ended: float) -> int | None:
        """The era of something that took from `begun` to `ended`; None if what was written then may be lost."""
        before = sum(fault.ended < begun for fault in self._lossy)
        return before if before == sum(fault.begun <= ended for fault in self._lossy) else None

    def era_of_wait(self, begun: float) -> int:
        """The era in which a wait that begins then is to be answered."""
        return sum(fault.begun <= begun for fault in self._lossy)

    def deadline(self, process: str, since: float) -> float:
        """Until when a process has to answer what it could answer `since` then."""
        deadline = since + self._promise
        for fault in self._faults:
            if fault.process in (None, process) and fault.begun < deadline and fault.ended > since:
                deadline = max(deadline, fault.ended + self._promise)
        return deadline

    def is_disturbed(self, process: str, begun: float, ended: float) -> bool:
        """Whether a process may answer late what it answers between these times."""
        own = (fault for fault in self._faults if fault.process in (None, process))
        return any(fault.begun < ended and fault.ended + self._promise > begun for fault in own)

    def may_have_new_epoch(self, seen_at: float, ended: float) -> bool:
        return any(fault.begun < ended and fault.ended + self._promise > seen_at for fault in self._new_epochs)

    def first_loss(self, begun: float, ended: float) -> float:
        """When something was lost for the first time while a wait was open."""
        return min((fault.begun for fault in self._lossy if begun < fault.begun < ended), default=inf)


def judge(notes: Sequence[Notes], faults: Sequence[Fault], promise: float, forgets: bool) -> Verdict:
    """The verdict on a run.

    Args:
        notes: of all processes.
        faults: what was done.
        promise: for how many seconds a wait may outlive its version, or the end of a fault.
        forgets: whether keys were forgotten, so that an answer may be the number of another key.
    """
    verdict, times = Verdict(), Times(faults, promise)
    bumps, attempts = bumps_of(notes, times)
    verdict.bumps, verdict.unknown = len(bumps), sum(map(len, attempts.values())) - len(bumps)
    judge_numbers(verdict, bumps)
    judge_reads(verdict, notes, bumps, times)
    judge_waits(verdict, notes, bumps, attempts, times, forgets)
    return verdict


def bumps_of(notes: Sequence[Notes], times: Times) -> tuple[list[Bump], dict[str, list[float]]]:
    """The writes that had an answer, and when all writes to each key have begun."""
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
    """The highest version that writes to a key had been given at a time."""

    def __init__(self, bumps: Sequence[Bump]) -> None:
        self.ends = [bump.ended for bump in bumps]
        self.versions = list(accumulate((bump.version for bump in bumps), max))

    def before(self, time: float) -> int:
        position = bisect_right(self.ends, time)
        return self.versions[position - 1] if position else 0

    def first_above(self, seen: int) -> float:
        """When a higher one than `seen` had been given."""
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


def judge_reads(verdict: Verdict, notes: Sequence[Notes], bumps: Sequence[Bump], times: Times) -> None:
    highest = {place: Highest(group) for place, group in by_era_and_key(bumps).items()}
    for name, lines, _ in notes:
        for at, kind, key, *rest in lines:
            if kind == "read":
                version, begun = rest
                verdict.reads += 1
                era = times.era(begun, at)
                if era is not None and (era, key) in highest and version < highest[era, key].before(begun):
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
    if not times.is_disturbed(name, due, ended):
        verdict.longest = max(verdict.longest, ended - due)


class Possible:
    """The highest number that a key may have had: that of any write that had begun, and one more for each without an answer."""

    def __init__(self, bumps: Sequence[Bump], attempts: dict[str, list[float]], forgets: bool) -> None:
        self._forgets = forgets
        self._highest: dict[str, Highest] = {}
        self._unknown: dict[str, list[float]] = {}
        groups: dict[str, list[Bump]] = defaultdict(list)
        for bump in bumps:
            groups["" if forgets else bump.key].append(Bump(bump.key, bump.version, bump.begun, bump.begun))
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
