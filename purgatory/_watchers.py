"""Watch lists: for each key, the operations that it may complete, in the order in which they came.

Most keys have one watcher and most operations one key, so a single watcher is stored directly, at the cost of one dictionary
entry. The second one turns the entry into a *chunk*, an ordered dictionary from which each can be removed in O(1). A chunk
takes 4,096; when it is full, the next watcher opens another one. So a list of a million is walked a chunk at a time, while
others come and go, and is never copied:

    by_key = {"orders-0": <Fetch A>,
              "orders-1": Chunk{<Fetch A>, ... 4096} -> Chunk{<Fetch C>, ... 4096} -> Chunk{<Fetch D>}}

An operation remembers its *places*: the bare key while it is alone there, else its chunk. Of several keys it remembers the
tuple that it was given, so that nothing has to be made for it: the first chunk of a key is found again by the key, and any
other chunk takes the place of its key in the tuple. Keys call code of the user, which may raise, or answer otherwise than
before: whoever is not found by its keys is searched for everywhere.

Kafka's counterpart, the `Watchers` of `DelayedOperationPurgatory`, keeps completed operations until a purge finds them
(KAFKA-19928: until the memory is gone). Here an operation leaves all its lists when it ends.
"""

from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from typing import Any, Final, final

Operation = Any
"""A `DelayedOperation`; of it only `_op_places` and `is_completed` are used here."""

Watched = Hashable | tuple[Hashable, ...]
"""What is to be watched: one key, or a tuple of keys, of several or of one that is itself a tuple."""

Places = Any
"""Where an operation stands: `NO_PLACES`; a key under which it is alone; a chunk; or a tuple, of keys under which it is alone
or in the first chunk, and of other chunks."""

NO_PLACES: Final[Places] = object()
"""The place of an operation that is not watched, or no longer."""

LONGEST_CHUNK: Final = 4096
"""So many are copied at once: 20 us. With fewer, more operations would have to remember their chunks."""

FIRST: Final = 512
"""How many are named at once to be cancelled: as many as a turn of the loop ends."""

LOST: Final = "cannot find a key again that {!r} watched: its hash, or what it equals, has changed"


def distinct(keys: Iterable[Hashable]) -> Watched:
    """The different keys among `keys`, in order.

    Raises:
        ValueError: there is none.
        TypeError: a key is not hashable, or `keys` is a string: its characters are hardly meant as keys.
    """
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys must be a collection of keys, not one string: pass [{keys!r}] to watch it")
    different = list(dict.fromkeys(keys))
    if not different:
        raise ValueError("keys must name at least one key: without one, only the deadline could end the wait")
    return tuple(different) if len(different) > 1 or type(different[0]) is tuple else different[0]


@final
class Chunk(dict[Operation, None]):
    """Up to `LONGEST_CHUNK` operations that watch a key, in order.

    The first chunk stays in `by_key` as long as the key has any watcher; the others leave the chain when they are empty.
    """

    # CPython lays them out by name: `accepts`, which each joining reads, lies beside the dictionary's own fields.
    __slots__ = ("accepts", "after", "before", "first", "is_linked", "key", "last")

    def __init__(self, key: Hashable, first: "Chunk | None" = None, before: "Chunk | None" = None) -> None:
        self.key = key
        self.first = first
        """The first of the chain; `None` if that is this one, ..."""
        self.last: Chunk | None = self if first is None else None
        """... which then knows the last one, that others may join, ..."""
        self.accepts = LONGEST_CHUNK
        """... and how many it may hold itself: none while there is another behind it. Once all have left it has no last one, so
        that it does not wait for the collector of garbage, and accepts none."""
        self.before = before
        self.after: Chunk | None = None
        self.is_linked = True

    def standing(self) -> "Chunk":
        """This chunk, or if it has left the chain since, the nearest one before it that has not."""
        chunk: Chunk = self
        while not chunk.is_linked and chunk.before is not None:
            chunk = chunk.before
        return chunk


def _to_nobody(message: str, error: BaseException | None) -> None:
    """Reports nothing."""


class Watchers:
    """The watch lists of one purgatory. Only differences from `len(by_key)` are counted: it is exact for operations that share
    no key and have only one, so these cost no counting.

    Args:
        report: called with a message and an exception, or `None`, when a key cannot be found again, because its `__hash__` or
    `__eq__` no longer answers as before.
    """

    __slots__ = ("_report", "_shared", "_spread", "by_key", "strays")

    def __init__(self, report: Callable[[str, BaseException | None], object] = _to_nobody) -> None:
        self.by_key: dict[Hashable, Operation | Chunk] = {}
        self._report = report
        self._shared = 0
        """Registrations beyond the first one of each key."""
        self._spread = 0
        """Registrations beyond the first one of each operation."""
        self.strays = 0
        """Entries of `by_key` whose watchers have left, but which cannot be removed, because their key has changed."""

    @property
    def registrations(self) -> int:
        """How many pairs of an operation and a key it watches there are. Cost: O(1)."""
        return len(self.by_key) - self.strays + self._shared

    @property
    def keys(self) -> int:
        """How many keys have a watcher. Cost: O(1)."""
        return len(self.by_key) - self.strays

    def __len__(self) -> int:
        """How many operations watch anything. Cost: O(1)."""
        return len(self.by_key) - self.strays + self._shared - self._spread

    def add(self, operation: Operation, watched: Watched) -> None:
        """Puts `operation` at the end of the list of each key that it watches. Cost: O(its keys).

        Raises:
            BaseException: what a key's `__hash__` or `__eq__` raises; nothing has changed.
        """
        if type(watched) is not tuple:
            waiting = self.by_key.setdefault(watched, operation)
            operation._op_places = watched if waiting is operation else self.join(watched, waiting, operation)
            return
        places: Any = watched
        by_key, counted, at = self.by_key, 0, 0
        try:
            for key in watched:
                waiting = by_key.setdefault(key, operation)
                if type(waiting) is Chunk and len(waiting) < waiting.accepts:
                    waiting[operation] = None  # what `join` does as a rule
                elif waiting is operation:
                    counted += 1
                else:
                    place = self.join(key, waiting, operation)
                    counted += 1
                    if type(place) is Chunk and place.first is not None:
                        places = [*watched] if places is watched else places
                        places[at] = place
                at += 1
        except BaseException:
            self._shared += at - counted
            self._spread += at
            self.remove(operation, tuple(places[:at]))
            self._spread -= 1
            raise
        self._shared += at - counted
        self._spread += at - 1
        operation._op_places = places if places is watched else tuple(places)

    def join(self, key: Hashable, waiting: "Operation | Chunk", operation: Operation) -> "Hashable | Chunk":
        """Puts `operation` behind who is `waiting` under `key`, and returns its place there."""
        if type(waiting) is not Chunk:
            if waiting.is_completed:  # a stray: it has left, and only its key stays
                self.by_key[key] = operation
                self.strays -= 1
                return key
            waiting = self._pair_up(key, waiting)
        first: Chunk = waiting
        chunk = first.last
        if chunk is None:  # a stray
            chunk = first.last = first
            chunk.accepts = LONGEST_CHUNK
            self.strays -= 1
            self._shared -= 1
        elif len(chunk) >= LONGEST_CHUNK:
            first.accepts = 0
            chunk.after = first.last = chunk = Chunk(key, first, chunk)
        chunk[operation] = None
        self._shared += 1
        return chunk

    def _pair_up(self, key: Hashable, alone: Operation) -> Chunk:
        """Puts the only watcher of `key` into a chunk, where others can join it."""
        by_key, first, number = self.by_key, Chunk(key), len(self.by_key)
        first[alone] = None
        by_key[key] = first
        if len(by_key) != number:
            by_key.popitem()
            raise RuntimeError(f"cannot find {key!r} again, which {alone!r} watches: what it equals has changed")
        places = alone._op_places
        if type(places) is not tuple and places is not NO_PLACES:  # which it is while it joins the lists of its other keys
            first.key, alone._op_places = places, first
        return first

    def remove(self, operation: Operation, places: Places) -> None:
        """Takes `operation` out of all its places. Does not raise.

        Cost: O(its keys); O(all keys) if one of several has changed.
        """
        if type(places) is not tuple:
            if type(places) is not Chunk:
                self._leave_alone(operation, places)
                return
            del places[operation]
            self._shared -= 1
            if not places:
                self._close(places)
            return
        by_key, number = self.by_key, len(places)
        alone = lost = 0
        trouble: BaseException | None = None
        self._spread -= number - 1
        for place in places:
            try:
                if type(place) is Chunk:
                    chunk = place
                else:
                    chunk = by_key[place]
                    if chunk is operation:
                        alone += 1
                        self._leave_alone(operation, place)
                        continue
                del chunk[operation]
                if chunk:
                    continue
            except BaseException as error:
                trouble, lost = error, lost + 1
                continue
            self._close(chunk)
        if trouble is not None:
            alone += lost - self._leave_by_search(operation, trouble)
        self._shared -= number - alone
        if trouble is not None and not len(self):
            self.shrink()

    def _leave_by_search(self, operation: Operation, trouble: BaseException) -> int:
        """Takes `operation` out of the lists that its keys no longer lead to; returns how many of them others watch, too."""
        shared = 0
        for waiting in list(self.by_key.values()):
            if waiting is operation:
                self.strays += 1
            elif type(waiting) is Chunk and operation in waiting:
                shared += 1
                del waiting[operation]
                if not waiting:
                    self._close(waiting)
        error = None if isinstance(trouble, (KeyError, TypeError)) else trouble
        self._report(LOST.format(operation), error)
        return shared

    def _close(self, chunk: Chunk) -> None:
        """Takes an empty chunk out of its chain, and the key out of the lists if it was the last one."""
        first = chunk.first
        if first is not None:
            before, after = chunk.before, chunk.after
            assert before is not None
            before.after = after
            if after is not None:
                after.before = before
            else:
                first.last = before
                if before is first:
                    first.accepts = LONGEST_CHUNK
            chunk.is_linked = False
            chunk = first
        if not chunk and chunk.after is None:
            chunk.last = None
            chunk.accepts = 0
            self._shared += 1
            self._leave_alone(chunk, chunk.key)

    def _leave_alone(self, waiting: "Operation | Chunk", key: Hashable) -> None:
        """Takes a key with its only entry out of the lists."""
        try:
            found = self.by_key.pop(key, None)
        except BaseException as error:
            found = error
        if found is not waiting:
            self.has_strayed(waiting, key, found)

    def has_strayed(self, waiting: "Operation | Chunk", key: Hashable, found: Any) -> None:
        """Keeps an entry that can no longer be found by its key: `found` was taken out instead, or raised.

        It stays until nothing waits at all, and counts for nothing.
        """
        error = found if isinstance(found, BaseException) else None
        if found is not None and error is None:
            self.by_key[key] = found
        self.strays += 1
        self._report(LOST.format(waiting), error)
        if not len(self):  # which it is not while `remove` has more to do
            self.shrink()

    def shrink(self) -> None:
        """Gives back the memory of the dictionary, which keeps the size that it once had, if nobody waits."""
        if not self.keys:
            self.by_key.clear()
            self._shared = self._spread = self.strays = 0

    def first_of(self, key: Hashable) -> list[Operation]:
        """Those that watch `key`, in order: the first of them, at most 512; none if there is none."""
        waiting = self.by_key.get(key)
        return [] if waiting is None else first_in(waiting)

    def of(self, key: Hashable) -> list[Operation]:
        """All that watch `key`, in order. Cost: one pointer for each."""
        found: list[Operation] = []
        waiting = self.by_key.get(key)
        if type(waiting) is not Chunk:
            return self.first_of(key)
        while waiting is not None:
            found += waiting
            waiting = waiting.after
        return found

    def _check(self) -> None:
        """Asserts that the lists hold exactly what their operations say that they watch. For tests."""
        actual = [(operation, key) for key in self.by_key for operation in self.of(key)]
        operations = {operation for operation, _ in actual}
        expected = {(operation, key) for operation in operations for key in keys_of(operation._op_places)}
        assert len(actual) == len(expected) and set(actual) == expected
        assert self.registrations == len(actual) and len(self) == len(operations)
        strays = 0
        for key, waiting in self.by_key.items():
            if type(waiting) is Chunk:
                strays += self._check_chain(key, waiting)
            else:
                strays += waiting.is_completed
        assert strays == self.strays

    @staticmethod
    def _check_chain(key: Hashable, first: Chunk) -> bool:
        """Asserts that a chain is whole; returns whether it is a stray."""
        assert first.key == key and first.first is None and first.before is None
        chunk: Chunk | None = first.after
        before = first
        while chunk is not None:
            assert chunk and chunk.first is first and chunk.before is before and chunk.is_linked
            before, chunk = chunk, chunk.after
        assert first.last is (before if first or first.after is not None else None)
        assert first.accepts == (LONGEST_CHUNK if first and before is first else 0)
        for each in (first, before):
            assert len(each) <= LONGEST_CHUNK
            for operation in each:
                places = operation._op_places
                assert places is each or (type(places) is tuple and (each is first or any(place is each for place in places)))
        return not first and first.after is None


def first_in(waiting: Operation | Chunk) -> list[Operation]:
    """The first of those who wait together, in order, at most 512; none if all have left."""
    if type(waiting) is not Chunk:
        return [] if waiting.is_completed else [waiting]
    return list(islice(waiting or waiting.after or (), FIRST))


def each_of(places: Places) -> tuple[Any, ...]:
    """The places of an operation, be it none, one or several."""
    if type(places) is tuple:
        return places
    return () if places is NO_PLACES else (places,)


def keys_of(places: Places) -> tuple[Hashable, ...]:
    """The keys of an operation's places, in the order in which it watched them."""
    if places is NO_PLACES:
        return ()
    if type(places) is not tuple:
        return (places.key if type(places) is Chunk else places,)
    return tuple([place.key if type(place) is Chunk else place for place in places])
