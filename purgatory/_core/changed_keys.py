"""Dictionaries with keys of users, whose `__hash__` and `__eq__` may raise, or change their
results."""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Protocol, TypeVar

from purgatory._core.arguments import describe, printable
from purgatory._core.loop import Report

T = TypeVar("T")


class Keyed(Protocol):
    """An entry that knows its key."""

    key: Any


E = TypeVar("E", bound=Keyed)


class LostKey:
    """Replaces a key under which an entry cannot be stored again."""

    __slots__ = ("_hash", "key")

    def __init__(self, key: Hashable, number: int) -> None:
        self.key = key
        # Not derived from the address, which would make runs differ, nor from the key.
        self._hash = hash((0x70757267, number))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<lost key {describe(self.key)}>"


def remove_or_report(
    table: dict[Any, E], entry: E, what: str, report: Report, found: E | None = None
) -> bool:
    """Removes `entry`, which was stored under its `key`; False if it cannot be found. Does not
    raise.

    Reports it then, and each entry whose key equals another one by now: that entry stays in the
    table under a `LostKey`.

    Args:
        table: by key.
        entry: contained in it.
        what: what the key was: "was a key".
        report: called with a message and the exception of a method of a key, or None.
        found: was removed in its place, if the caller has looked it up.
    """
    raised = None
    try:
        if found is None:
            found = table.pop(entry.key, None)
        if found is entry:
            return True
        if found is not None:
            put_back = partial(_put_back, table, what, report)
            if remove_entry(table, entry.key, entry, found, put_back):
                return True
    except BaseException as error:
        raised = error
    for key, each in list(table.items()):
        if each is entry and type(key) is LostKey:
            del table[key]
            return True
    _report_lost(entry, what, report, raised)
    return False


def _put_back(table: dict[Any, E], what: str, report: Report, entry: E) -> None:
    """Stores an entry without overwriting another one. Does not raise."""
    raised = None
    try:
        if table.setdefault(entry.key, entry) is entry:
            return
    except BaseException as error:
        raised = error
    table[LostKey(entry.key, len(table))] = entry
    _report_lost(entry, what, report, raised)


def _report_lost(entry: Keyed, what: str, report: Report, raised: BaseException | None) -> None:
    key = f"a {printable(type(entry.key).__name__)} again that {what}"
    report(f"cannot find {key}: its __hash__ or __eq__ has changed its result", raised)


def remove_entry(
    table: dict[Any, T], key: Hashable, entry: T, found: T, put_back: Callable[[T], object]
) -> bool:
    """Removes `entry`, which was stored under `key`, after `found` was removed in its place.

    Other keys may equal `key` by now. Their entries are removed until `entry` is found, and then
    put back: while `entry` is there, they may be stored under its key instead of their own.

    Args:
        table: does not contain `None`.
        put_back: called with `found`, and with each other entry that was removed. It does not
            raise.

    Returns:
        Whether `entry` was found.

    Raises:
        BaseException: the exception of a method of a key; the other entries are put back.
    """
    others, other = [found], None
    try:
        for _ in range(len(table)):  # an end, even if a method of a key adds entries
            other = table.pop(key, None)
            if other is None or other is entry:
                break
            others.append(other)
    finally:
        for each in others:
            put_back(each)
    return other is entry
