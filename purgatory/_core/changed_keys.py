"""Dictionaries with keys of users, whose `__hash__` and `__eq__` may raise, or change their
results."""

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

from purgatory._core.arguments import printable
from purgatory._core.loop import Report

T = TypeVar("T")


class Keyed(Protocol):
    """An entry that knows its key."""

    key: Any


E = TypeVar("E", bound=Keyed)


def remove_keyed(table: dict[Any, E], entry: E, found: E | None = None) -> bool:
    """Removes `entry`, which was stored under its `key`; False if it cannot be found.

    Args:
        table: by key.
        entry: contained in it.
        found: was removed in its place, if the caller has looked it up.

    Raises:
        BaseException: the exception of a method of a key; the other entries are put back.
    """
    key = entry.key
    if found is None:
        found = table.pop(key, None)
        if found is None or found is entry:
            return found is entry
    return remove_entry(table, key, entry, found, lambda each: table.setdefault(each.key, each))


def remove_or_report(table: dict[Any, E], entry: E, what: str, report: Report) -> bool:
    """As `remove_keyed`, but reports an entry that cannot be found, and exceptions.

    Args:
        what: what the key was: "was a key".
        report: called with a message and the exception, or None.
    """
    raised = None
    try:
        if remove_keyed(table, entry):
            return True
    except BaseException as error:
        raised = error
    key = f"a {printable(type(entry.key).__name__)} again that {what}"
    report(f"cannot find {key}: its __hash__ or __eq__ has changed its result", raised)
    return False


def remove_entry(
    table: dict[Any, T], key: Hashable, entry: T, found: T, put_back: Callable[[T], object]
) -> bool:
    """Removes `entry`, which was stored under `key`, after `found` was removed in its place.

    Other keys may equal `key` by now. Their entries are removed until `entry` is found, and then
    put back: while `entry` is there, they may be stored under its key instead of their own.

    Args:
        table: does not contain `None`.
        put_back: called with `found`, and with each other entry that was removed.

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
