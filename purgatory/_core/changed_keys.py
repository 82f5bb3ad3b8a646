"""Dictionaries with keys of users, whose `__hash__` and `__eq__` may raise, or change their
results."""

from collections.abc import Callable, Hashable
from typing import Any, Final, Protocol, TypeVar

from purgatory._core.arguments import describe

T = TypeVar("T")


class Keyed(Protocol):
    """An entry that knows its key."""

    key: Any


E = TypeVar("E", bound=Keyed)

Lost = Callable[[T, BaseException | None], object]
"""Called with an entry that its key does not find any more, and the exception of a method of the
key, or None."""


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


CHANGED: Final = "its __hash__ or __eq__ has changed its result"
"""Why a key cannot be found, for reports."""


def store(table: dict[Any, T], key: Hashable, entry: T, lost: Lost[T]) -> None:
    """Stores an entry without overwriting another one, at worst under a `LostKey`. Does not raise.

    Args:
        lost: called if the entry cannot be stored under `key`.
    """
    raised = None
    try:
        if table.setdefault(key, entry) is entry:
            return
    except BaseException as error:
        raised = error
    table[LostKey(key, len(table))] = entry
    lost(entry, raised)


def remove_keyed(table: dict[Any, E], entry: E, lost: Lost[E], found: E | None = None) -> bool:
    """Removes `entry`, which was stored under its `key`; False if it cannot be found. Does not
    raise.

    Args:
        table: by key.
        entry: contained in it.
        lost: called with `entry` if it cannot be found, and with each entry whose key equals
            another one by now, and which stays in the table under a `LostKey`.
        found: was removed in its place, if the caller has looked it up.
    """
    raised = None
    try:
        if found is None:
            found = table.pop(entry.key, None)
        if found is entry:
            return True
        if found is not None and remove_entry(
            table, entry.key, entry, found, lambda each: store(table, each.key, each, lost)
        ):
            return True
    except BaseException as error:
        raised = error
    for key, each in list(table.items()):
        if each is entry and type(key) is LostKey:
            del table[key]
            return True
    lost(entry, raised)
    return False


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
