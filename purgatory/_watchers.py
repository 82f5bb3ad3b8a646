"""Watch lists: for each key, the operations that it may complete, in the order in which they came.

Most keys have one watcher and most operations one key, so one watcher is stored as itself, at the price of one dictionary
entry; the second one turns the entry into a dictionary of watchers, ordered, from which each can be removed in O(1).

    by_key = {"orders-0": <Fetch A>, "orders-1": {<Fetch A>: None, <Fetch B>: None}}

An operation remembers what it watches as the bare key, or as a tuple of keys: of several, or of one that is itself a tuple.

Kafka's counterpart, the `Watchers` of `DelayedOperationPurgatory`, keeps completed operations until a purge finds them
(KAFKA-19928: until the memory is gone). Here an operation leaves all its lists when it ends.
"""

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from purgatory._operation import DelayedOperation

    Operation = DelayedOperation[Any]


Watched = Hashable | tuple[Hashable, ...]
"""What an operation watches: one key, or a tuple of keys."""

NO_KEYS: Final[Watched] = object()
"""What an operation watches that is not watched, or not yet."""


def distinct(keys: Iterable[Hashable]) -> Watched:
    """The different keys among `keys`, in order, as an operation remembers them.

    Raises:
        ValueError: there is none.
        TypeError: a key is not hashable, or `keys` is a string, whose characters are hardly what was meant.
    """
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys must be a collection of keys, not one string: pass [{keys!r}] to watch it")
    different = list(dict.fromkeys(keys))
    if not different:
        raise ValueError("keys must name at least one key: without one, only the deadline could end the wait")
    return tuple(different) if len(different) > 1 or type(different[0]) is tuple else different[0]


class Watchers:
    """The watch lists of one purgatory. What is counted is counted where it differs from `len(by_key)`, which is exact
    for operations that share nothing: so they cost no counting."""

    __slots__ = ("_shared", "_spread", "by_key")

    def __init__(self) -> None:
        self.by_key: dict[Hashable, Operation | dict[Operation, None]] = {}
        self._shared = 0
        """Registrations beyond the first one of each key."""
        self._spread = 0
        """Registrations beyond the first one of each operation."""

    @property
    def registrations(self) -> int:
        """How many pairs of an operation and a key it watches there are. Cost: O(1)."""
        return len(self.by_key) + self._shared

    def __len__(self) -> int:
        """How many operations watch anything. Cost: O(1)."""
        return len(self.by_key) + self._shared - self._spread

    def add(self, operation: "Operation", watched: Watched) -> None:
        """Puts `operation` at the end of the list of each key that it watches. Cost: O(its keys)."""
        if type(watched) is not tuple:
            self.join(watched, operation)
            return
        # What `join` does, for each key; that most keys have several watchers already makes it shortest for those.
        by_key = self.by_key
        self._shared += len(watched)
        self._spread += len(watched) - 1
        for key in watched:
            waiting = by_key.get(key)
            if type(waiting) is dict:
                waiting[operation] = None
            elif waiting is None:
                by_key[key] = operation
                self._shared -= 1
            else:
                by_key[key] = {cast("Operation", waiting): None, operation: None}

    def join(self, key: Hashable, operation: "Operation") -> None:
        """Puts `operation` at the end of the list of `key`, if it is not the only one on it already."""
        waiting = self.by_key.setdefault(key, operation)
        if waiting is not operation:
            self._shared += 1
            if type(waiting) is dict:
                waiting[operation] = None
            else:
                self.by_key[key] = {cast("Operation", waiting): None, operation: None}

    def remove(self, operation: "Operation", watched: Watched) -> None:
        """Takes `operation` out of the list of each key that it watches. Cost: O(its keys)."""
        by_key = self.by_key
        if type(watched) is tuple:
            self._spread -= len(watched) - 1
        else:
            watched = (watched,)
        self._shared -= len(watched)
        for key in watched:
            waiting: Any = by_key[key]
            if waiting is not operation:
                del waiting[operation]
                if waiting:
                    continue
            del by_key[key]
            self._shared += 1

    def shrink(self) -> None:
        """Gives back the memory of the dictionary, which keeps the size that it once had, if it is empty."""
        if not self.by_key:
            self.by_key.clear()

    def of(self, key: Hashable) -> "list[Operation]":
        """The operations that watch `key`, in order. Cost: one pointer for each."""
        waiting = self.by_key.get(key)
        if waiting is None:
            return []
        return list(waiting) if type(waiting) is dict else [cast("Operation", waiting)]

    def _check(self) -> None:
        """Asserts that the lists hold exactly what their operations say that they watch. For tests."""
        actual = [(operation, key) for key in self.by_key for operation in self.of(key)]
        operations = {operation for operation, _ in actual}
        expected = {
            (operation, key)
            for operation in operations
            for key in (operation._op_keys if type(operation._op_keys) is tuple else (operation._op_keys,))
        }
        assert len(actual) == len(expected) and set(actual) == expected
        assert self.registrations == len(actual) and len(self) == len(operations)
        assert all(waiting for waiting in self.by_key.values() if type(waiting) is dict)
