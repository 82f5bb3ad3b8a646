"""Judges the calls of processes, by the promises of relays alone. All times are from one clock.

A fault that may lose writes starts a new *era*: numbers are compared within one era only.
"""

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from math import inf
from pathlib import Path
from typing import Any

CLOCKS = 0.1
"""Allowance for the store's clock, in seconds: for a late reading, and for drift."""

ERRORS = (
    "missed",  # a later version did not end the wait in time
    "early",  # a wait returned the version it had seen, or a lower one, in the same epoch
    "invented",  # an answer or a reply that no process had written, or not this one
    "back",  # a write at or below an earlier one, or a read below it
    "settled_twice",
    "unreceived",  # a receive or a look missed an existing reply
    "overdue",  # a value was received after it had expired
)


@dataclass
class Call:
    """A call of a process. Kinds, with what is `given` and the answers:

    bump: a version. read: a version. wait (version seen, and when): a version. deliver (value, time
    to live): whether it settled the key. receive, and a look for a reply, `ask`: a value or None.
    """

    kind: str
    key: str
    given: Sequence[Any]
    begun: float
    ended: float
    """Without an answer: when the process ended."""
    answer: Any = None
    is_answered: bool = True
    process: str = "one"


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
    """Counts the `ERRORS`, and the answered calls of each kind; `examples` has evidence of errors."""

    def __init__(self, kinds: Iterable[str]) -> None:
        super().__init__(kinds)
        self.examples: list[str] = []

    @property
    def wrong(self) -> int:
        return sum(self[name] for name in ERRORS)

    def add(self, name: str, *evidence: object) -> None:
        self[name] += 1
        if len(self.examples) < 20:
            self.examples.append(f"{name}: {evidence}")


def calls_of(file: Path, end: float) -> list[Call]:
    """The calls that a process noted until it ended, at `end`.

    The first line of a call has `[number, begun, kind, key, given]`, the second one, if it was
    answered, `[number, ended, answer]`. A killed process may leave an incomplete last line.
    """
    calls: dict[int, Call] = {}
    for number, at, *rest in map(json.loads, file.read_text().split("\n")[:-1]):
        if number in calls:
            call = calls[number]
            call.ended, call.answer, call.is_answered = at, rest[0], True
        else:
            calls[number] = Call(*rest, at, end, None, False, file.name.partition(".")[0])
    return [*calls.values()]


class Times:
    """The deadlines and eras that follow from the faults."""

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


class Highest:
    """The highest version of a key over time, by its answered writes."""

    def __init__(self, bumps: Iterable[Call] = ()) -> None:
        bumps = sorted(bumps, key=lambda bump: bump.ended)
        self.ends = [bump.ended for bump in bumps]
        self.versions = [*accumulate((bump.answer for bump in bumps), max)]

    def before(self, time: float) -> int:
        position = bisect_right(self.ends, time)
        return self.versions[position - 1] if position else 0

    def first_above(self, seen: int) -> float:
        """Time of the first version above `seen`; infinity without one."""
        position = bisect_right(self.versions, seen)
        return self.ends[position] if position < len(self.ends) else inf


def judge(calls: Sequence[Call], faults: Sequence[Fault], promise: float, forgets: bool) -> Verdict:
    """The verdict on a run.

    Args:
        calls: Of all processes.
        faults: The injected faults.
        promise: Seconds for which a wait may outlive its version, or the end of a fault.
        forgets: Whether keys were forgotten, so that an answer may be the number of another key.
    """
    verdict, times = (
        Verdict(call.kind for call in calls if call.is_answered),
        Times(faults, promise),
    )
    judge_versions(verdict, calls, times, forgets)
    judge_replies(verdict, calls, times)
    return verdict


def judge_versions(verdict: Verdict, calls: Sequence[Call], times: Times, forgets: bool) -> None:
    attempts: dict[str, list[float]] = defaultdict(list)  # to write, by key
    bumps: dict[tuple[int | None, str], list[Call]] = defaultdict(list)  # by era and key
    for call in calls:
        if call.kind == "bump":
            attempts["" if forgets else call.key].append(call.begun)
            era = times.era(call.begun, call.ended)
            if call.is_answered and era is not None:
                bumps[era, call.key].append(call)
    highest = defaultdict(Highest, {place: Highest(group) for place, group in bumps.items()})
    for place, group in bumps.items():
        for version, count in Counter(bump.answer for bump in group).items():
            if count > 1:
                verdict.add("back", place, version, "was given more than once")
        for bump in group:
            if bump.answer <= highest[place].before(bump.begun):
                verdict.add("back", place, bump)
    for moments in attempts.values():
        moments.sort()
    for call in calls:
        if call.kind == "read" and call.is_answered:  # without an era there are no bumps
            place = times.era(call.begun, call.ended), call.key
            if call.answer < highest[place].before(call.begun):
                verdict.add("back", call)
        elif call.kind == "wait":
            seen, seen_at = call.given
            if call.is_answered and not times.may_have_new_epoch(seen_at, call.ended):
                if call.answer <= seen:
                    verdict.add("early", call)
                # Each write raises a version by one.
                if call.answer > bisect_right(attempts["" if forgets else call.key], call.ended):
                    verdict.add("invented", call)
            exists_at = highest[times.era_of_wait(call.begun), call.key].first_above(seen)
            due = min(max(exists_at, call.begun), times.first_loss(call.begun, call.ended))
            if due < call.ended and call.ended > times.deadline(call.process, due):
                verdict.add("missed", call, due)


def judge_replies(verdict: Verdict, calls: Sequence[Call], times: Times) -> None:
    replies: dict[str, list[Call]] = defaultdict(list)  # the deliveries that settled their key
    begun: dict[tuple[str, str], float] = {}
    refused: set[tuple[str, str]] = set()
    for call in calls:
        if call.kind == "deliver":
            begun[call.key, call.given[0]] = call.begun
            if call.answer:
                replies[call.key].append(call)
            elif call.is_answered and times.era(call.begun, call.ended) is not None:
                refused.add((call.key, call.given[0]))  # else it may have been made and lost
    for one, other in (pair for group in replies.values() for pair in combinations(group, 2)):
        lived = min(each.begun + each.given[1] for each in (one, other))
        first, last = min(one.begun, other.begun), max(one.ended, other.ended)
        if last < lived - CLOCKS and times.era(first, last) is not None:
            verdict.add("settled_twice", one, other)
    for call in calls:
        if call.kind not in ("receive", "ask"):
            continue
        value, is_look = call.answer, call.kind == "ask"
        written = call.key, value
        if value is not None and (begun.get(written, inf) >= call.ended or written in refused):
            verdict.add("invented", call)
        for reply in replies[call.key]:
            expires = reply.begun + reply.given[1]
            is_there = call.begun > reply.ended and call.ended < expires - CLOCKS
            may_be_lost = times.era(reply.begun, call.ended) is None
            if value == reply.given[0]:
                if call.begun > reply.ended + reply.given[1] + CLOCKS:
                    verdict.add("overdue", call, reply)
            elif value is not None and is_there and not may_be_lost:
                verdict.add("invented", call, reply)
            elif is_look and call.is_answered and is_there and not may_be_lost:
                verdict.add("unreceived", call, reply)
            deadline = times.deadline(call.process, max(call.begun, reply.ended))
            is_late = deadline < min(expires, call.ended) and not is_look
            if is_late and times.era(reply.begun, deadline) is not None:
                verdict.add("unreceived", call, reply)
