"""Judges the notes of processes: finds waits that were missed, ended early, or returned a version
that was never written, and replies that were settled twice, not received, or received too late.

It relies on the promises of relays alone. A process notes `[time, kind, key, ...]`; all times are
from one clock:

    [3.0, "wait", "a", 7, 2.9]      a wait for a version above 7, which was seen at 2.9, starts
    [3.4, "answer", "a", 8, 3.0]    the wait from 3.0 ends
    [3.1, "bump", "a"]              a write starts
    [3.2, "bumped", "a", 8, 3.1]    it got version 8; without this line it may have been made
    [3.5, "read", "a", 8, 3.3]      a read that started at 3.3
    [3.0, "deliver", "r", "one", 20.0]    a delivery with this value and time to live starts
    [3.1, "delivered", "r", "one", 20.0, 3.0, true]    it settled the key, or not
    [2.0, "receive", "r"]           a wait for the reply starts
    [3.2, "received", "r", "one", 2.0]    the wait from 2.0 ends
    [5.0, "asked", "r", null, 4.9]  a look at 4.9 found nothing, or a value

The injector of the faults notes the start and end of each. A fault that may lose writes starts a
new *era*: numbers are compared within one era only.
"""

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from math import inf
from pathlib import Path
from typing import Any

Line = list[Any]
Notes = tuple[str, Sequence[Line], float]
"""Name, lines and end time of a process."""

CLOCKS = 0.1
"""Allowance for the store's clock, in seconds: for a late reading, and for drift."""

ERRORS = (
    "missed",  # a later version did not end the wait in time
    "early",  # a wait returned the version it had seen, or a lower one, in the same epoch
    "invented",  # an answer or a reply that no process had written, or not this one
    "back",  # a write at or below an earlier one, or a read below it
    "twice",  # two writes got one version
    "settled_twice",
    "unreceived",  # a receive or a look missed an existing reply
    "overdue",  # a value was received after it had expired
)


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


class Verdict(Counter[str]):
    """Counts the `ERRORS`, and the lines of each kind; `examples` has evidence of errors."""

    def __init__(self) -> None:
        super().__init__()
        self.examples: list[str] = []

    @property
    def wrong(self) -> int:
        return sum(self[name] for name in ERRORS)

    def add(self, name: str, *evidence: object) -> None:
        self[name] += 1
        if len(self.examples) < 20:
            self.examples.append(f"{name}: {evidence}")


def lines_of(file: Path) -> list[Line]:
    """The notes of a process, without an incomplete last line."""
    *texts, _ = file.read_text().split("\n")
    return [json.loads(text) for text in texts]


class Times:
    """The faults, and the deadlines and eras that follow from them."""

    def __init__(self, faults: Sequence[Fault], promise: float) -> None:
        self._faults = sorted(faults, key=lambda fault: fault.begun)
        self._lossy = [fault for fault in self._faults if fault.is_lossy]
        self._promise = promise

    def era(self, begun: float, ended: float) -> int | None:
        """The era of an event that lasted from `begun` to `ended`; None if a fault may have lost
        its write."""
        before = sum(fault.ended < begun for fault in self._lossy)
        return before if before == self.era_of_wait(ended) else None

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
            fault.is_new_epoch and fault.begun < ended and fault.ended + self._promise > seen_at
            for fault in self._faults
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
    for _, lines, _ in notes:
        verdict.update(line[1] for line in lines)
    highest = judge_bumps(verdict, notes, times)
    judge_waits(verdict, notes, highest, times, forgets)
    judge_replies(verdict, notes, times)
    return verdict


# -- versions


@dataclass
class Bump:
    """A write with an answer."""

    version: int
    begun: float
    ended: float


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


Highests = defaultdict[tuple[int | None, str], Highest]
"""By era and key."""


def judge_bumps(verdict: Verdict, notes: Sequence[Notes], times: Times) -> Highests:
    """Judges the numbers of writes and reads."""
    bumps: dict[tuple[int, str], list[Bump]] = defaultdict(list)
    for _, lines, _ in notes:
        for at, kind, key, *rest in lines:
            if kind == "bumped" and (era := times.era(rest[1], at)) is not None:
                bumps[era, key].append(Bump(*rest, at))
    highest: Highests = defaultdict(lambda: Highest(()))
    for place, group in bumps.items():
        group.sort(key=lambda bump: bump.ended)
        highest[place] = Highest(group)
        given: set[int] = set()
        for bump in group:
            if bump.version in given:
                verdict.add("twice", place, bump)
            elif bump.version <= highest[place].before(bump.begun):
                verdict.add("back", place, bump)
            given.add(bump.version)
    for name, lines, _ in notes:
        for at, kind, key, *rest in lines:
            # An event without an era has no bumps beside it.
            if kind == "read" and rest[0] < highest[times.era(rest[1], at), key].before(rest[1]):
                verdict.add("back", name, at, kind, key, rest)
    return highest


def judge_waits(
    verdict: Verdict, notes: Sequence[Notes], highest: Highests, times: Times, forgets: bool
) -> None:
    attempts: dict[str, list[float]] = defaultdict(list)
    for _, lines, _ in notes:
        for at, kind, key, *_ in lines:
            if kind == "bump":
                attempts["" if forgets else key].append(at)
    for moments in attempts.values():
        moments.sort()

    def judge_duration(name: str, key: str, seen: int, begun: float, ended: float) -> None:
        """Judges a wait that was open from `begun` to `ended`."""
        exists_at = highest[times.era_of_wait(begun), key].first_above(seen)
        due = min(max(exists_at, begun), times.first_loss(begun, ended))
        if due < ended and ended > times.deadline(name, due):
            verdict.add("missed", name, key, seen, begun, due, ended)

    for name, lines, end in notes:
        open_waits: dict[str, Line] = {}
        for line in lines:
            at, kind, key, *rest = line
            if kind == "wait":
                open_waits[key] = line
            elif kind == "answer":
                begun, _, _, seen, seen_at = open_waits.pop(key)
                if not times.may_have_new_epoch(seen_at, at):
                    if rest[0] <= seen:
                        verdict.add("early", name, line, seen)
                    # Each write raises a version by one.
                    if rest[0] > bisect_right(attempts["" if forgets else key], at):
                        verdict.add("invented", name, line, seen)
                judge_duration(name, key, seen, begun, at)
        for key, (begun, _, _, seen, _) in open_waits.items():
            judge_duration(name, key, seen, begun, end)


# -- replies


@dataclass
class Reply:
    """A delivery that returned true: it settled its key."""

    value: str
    ttl: float
    begun: float
    ended: float


def judge_replies(verdict: Verdict, notes: Sequence[Notes], times: Times) -> None:
    replies: dict[str, list[Reply]] = defaultdict(list)
    begun: dict[tuple[str, str], float] = {}
    refused: set[tuple[str, str]] = set()
    for _, lines, _ in notes:
        for at, kind, key, *rest in lines:
            if kind == "deliver":
                begun[key, rest[0]] = at
            elif kind == "delivered":
                value, ttl, since, is_settled = rest
                if is_settled:
                    replies[key].append(Reply(value, ttl, since, at))
                elif times.era(since, at) is not None:  # else it may have been made and lost
                    refused.add((key, value))
    for one, other in (pair for group in replies.values() for pair in combinations(group, 2)):
        lived = min(one.begun + one.ttl, other.begun + other.ttl)
        first, last = min(one.begun, other.begun), max(one.ended, other.ended)
        if last < lived - CLOCKS and times.era(first, last) is not None:
            verdict.add("settled_twice", one, other)

    def judge_answer(name: str, at: float, kind: str, key: str, value: Any, since: float) -> None:
        if value is not None and (begun.get((key, value), at) >= at or (key, value) in refused):
            verdict.add("invented", name, at, key, value)
        for reply in replies[key] if value is not None or kind == "asked" else ():
            is_there = since > reply.ended and at < reply.begun + reply.ttl - CLOCKS
            if value == reply.value:
                if since > reply.ended + reply.ttl + CLOCKS:
                    verdict.add("overdue", name, since, at, reply)
            elif is_there and times.era(reply.begun, at) is not None:
                verdict.add("invented" if value else "unreceived", name, since, at, reply)

    def judge_wait(name: str, key: str, since: float, ended: float) -> None:
        """Judges a wait that was open from `since` to `ended`."""
        for reply in replies[key]:
            deadline = times.deadline(name, max(since, reply.ended))
            is_alive = deadline < reply.begun + reply.ttl and ended > deadline
            if is_alive and times.era(reply.begun, deadline) is not None:
                verdict.add("unreceived", name, since, ended, reply)

    for name, lines, end in notes:
        waiting: dict[str, float] = {}
        for at, kind, key, *rest in lines:
            if kind == "receive":
                waiting[key] = at
            elif kind in ("received", "asked"):
                judge_answer(name, at, kind, key, *rest)
                if kind == "received":
                    judge_wait(name, key, waiting.pop(key), at)
        for key, since in waiting.items():
            judge_wait(name, key, since, end)
