"""Judges the replies that processes deliver and receive. Like `oracle_judge`, it relies on the
promises of relays alone:

    [3.0, "deliver", "r1", "one 7", 20.0]      a delivery with this value and time to live starts
    [3.1, "delivered", "r1", "one 7", 20.0, 3.0, true]    it settled the key, or not
    [2.0, "receive", "r1"]                     a wait for the reply starts
    [3.2, "received", "r1", "one 7", 2.0]      the wait from 2.0 ends
    [5.0, "asked", "r1", null, 4.9]            a look at 4.9 found nothing, or a value
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oracle_judge import Notes, Times, Verdict

CLOCKS = 0.1
"""Allowance for the store's clock, in seconds: for a late reading, and for drift."""


@dataclass
class Reply:
    """A delivery that returned true: it settled its key."""

    key: str
    value: str
    ttl: float
    begun: float
    ended: float


def judge_replies(verdict: Verdict, notes: Sequence[Notes], times: Times) -> None:
    """Adds the errors in replies to `verdict`."""
    replies: dict[str, list[Reply]] = defaultdict(list)
    begun: dict[tuple[str, str], float] = {}
    refused: set[tuple[str, str]] = set()
    for _, lines, _ in notes:
        for at, kind, key, *rest in lines:
            if kind == "deliver":
                begun[key, rest[0]] = at
            elif kind == "delivered":
                value, ttl, since, is_settled = rest
                verdict.deliveries += 1
                if is_settled:
                    replies[key].append(Reply(key, value, ttl, since, at))
                elif times.era(since, at) is not None:  # else it may have been made and lost
                    refused.add((key, value))
    for of_key in replies.values():
        judge_settled(verdict, of_key, times)
    for name, lines, end in notes:
        waiting: dict[str, float] = {}
        for at, kind, key, *rest in lines:
            if kind == "receive":
                waiting[key] = at
            elif kind in ("received", "asked"):
                value, since = rest
                verdict.replies += value is not None
                if value is not None and begun.get((key, value), at) >= at:
                    verdict.add("invented", name, at, key, value)
                if value is not None and (key, value) in refused:
                    verdict.add("invented", name, at, key, value, "which was refused")
                judge_end(verdict, replies[key], value, since, at, name)
                if kind == "received":
                    del waiting[key]
                    judge_wait(verdict, replies[key], name, since, at, times)
                elif value is None:
                    judge_absence(verdict, replies[key], name, since, at, times)
        for key, since in waiting.items():
            judge_wait(verdict, replies[key], name, since, end, times)
    judge_values(verdict, notes, replies, times)


def judge_settled(verdict: Verdict, replies: Sequence[Reply], times: Times) -> None:
    """Finds two deliveries that settled one key while neither had expired."""
    for number, one in enumerate(replies):
        for other in replies[number + 1 :]:
            lived = min(one.begun + one.ttl, other.begun + other.ttl)
            is_same = max(one.ended, other.ended) < lived - CLOCKS
            first, last = min(one.begun, other.begun), max(one.ended, other.ended)
            if is_same and times.era(first, last) is not None:
                verdict.add("settled_twice", one, other)


def judge_end(
    verdict: Verdict,
    replies: Sequence[Reply],
    value: str | None,
    since: float,
    at: float,
    name: str,
) -> None:
    """Finds values that had expired before the call that returned them."""
    for reply in replies:
        if reply.value == value and since > reply.ended + reply.ttl + CLOCKS:
            verdict.add("overdue", name, since, at, reply)


def judge_wait(
    verdict: Verdict,
    replies: Sequence[Reply],
    name: str,
    since: float,
    ended: float,
    times: Times,
) -> None:
    """Judges a wait that was open from `since` to `ended`."""
    for reply in replies:
        due = max(since, reply.ended)
        deadline = times.deadline(name, due)
        is_alive = deadline < reply.begun + reply.ttl and ended > deadline
        if is_alive and times.era(reply.begun, deadline) is not None:
            verdict.add("unreceived", name, since, ended, reply)


def judge_absence(
    verdict: Verdict,
    replies: Sequence[Reply],
    name: str,
    since: float,
    at: float,
    times: Times,
) -> None:
    """Judges a look that found nothing although the reply existed throughout."""
    for reply in replies:
        is_there = since > reply.ended and at < reply.begun + reply.ttl - CLOCKS
        if is_there and times.era(reply.begun, at) is not None:
            verdict.add("unreceived", name, "asked", since, at, reply)


def judge_values(
    verdict: Verdict,
    notes: Sequence[Notes],
    replies: Mapping[str, Sequence[Reply]],
    times: Times,
) -> None:
    """Finds values other than the reply that existed throughout the call."""
    for name, lines, _ in notes:
        for at, kind, key, *rest in lines:
            if kind not in ("received", "asked") or rest[0] is None:
                continue
            value, since = rest
            for reply in replies.get(key, ()):
                is_there = since > reply.ended and at < reply.begun + reply.ttl - CLOCKS
                if is_there and value != reply.value and times.era(reply.begun, at) is not None:
                    verdict.add("invented", name, at, key, value, reply)
