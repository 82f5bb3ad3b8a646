"""Watch lists: for each key, the operations that watch it, in order of arrival.

Most keys have one watcher and most operations one key, so a single watcher is stored directly, at the cost of one dictionary
entry. The second one turns the entry into a *chunk*, an ordered dictionary from which each can be removed in O(1). A chunk
holds 4,096; when it is full, the next watcher opens another one. So a list of a million is iterated over by chunks while it
changes, and is never copied:

    by_key = {"orders-0": <Fetch A>,
              "orders-1": Chunk{<Fetch A>, ... 4096} -> Chunk{<Fetch C>, ... 4096} -> Chunk{<Fetch D>}}

An operation has *links*: the bare key if it is its only watcher, else its chunk. For several keys it has the tuple that the
caller passed, so that no other has to be made: the first chunk of a key is found by the key, and any other chunk replaces its
key in the tuple. The `__hash__` and `__eq__` of keys are user code, which may raise, or change its result: an operation that is
not found by its keys is searched for in all lists.

Kafka's counterpart, the `Watchers` of `DelayedOperationPurgatory`, keeps completed operations until a purge finds them
(KAFKA-19928: until the memory is gone). Here an operation leaves all its lists when it ends.
"""

from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from itertools import islice
from typing import Any, Final, cast, final

from purgatory._arguments import describe
from purgatory._loop import MAX_PER_ITERATION, REGISTRATIONS_PER_STEP
from purgatory._state import PENDING

Operation = Any
"""A `DelayedOperation`; of it only `_op_links` and `_op_state` are used here."""

Keys = Hashable | tuple[Hashable, ...]
"""One key, or a tuple of keys: of several, or of one that is itself a tuple."""

WatchLinks = Any
"""The lists that an operation is in: `UNWATCHED`; a key of which it is the only watcher; a chunk; or a tuple, of keys of which
it is the only watcher or in the first chunk, and of other chunks."""


class _Unwatched(Enum):
    """An enum, because its members stay the same when they are copied or pickled."""

    UNWATCHED = "unwatched"


UNWATCHED: Final[WatchLinks] = _Unwatched.UNWATCHED
"""The links of an operation that is not watched, or no longer."""

CHUNK_CAPACITY: Final = 4096
"""To copy so many takes 20 us. With a smaller one, more operations would have to store their chunks."""


def unique_keys(keys: Iterable[Hashable]) -> Keys:
    """The different keys among `keys`, in order.

    Raises:
        ValueError: there is none.
        TypeError: a key is not hashable; `keys` is no collection, or a string, whose characters are hardly meant as keys.
    """
    if type(keys) is tuple and 1 < len(keys) == len({*keys}):
        return keys
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys must be a collection of keys, not one string: pass [{keys!r}] to watch it")
    try:
        iterator = iter(keys)
    except TypeError:
        raise TypeError(
            f"keys must be a collection of keys, not {describe(keys)}: pass [{describe(keys)}] to watch it"
        ) from None
    different = list(dict.fromkeys(iterator))
    if not different:
        raise ValueError("keys must name at least one key: without one, only the deadline could end the wait")
    return tuple(different) if len(different) > 1 or type(different[0]) is tuple else different[0]


@final
class Chunk(dict[Operation, None]):
    """Up to `CHUNK_CAPACITY` operations that watch a key, in order.

    The first chunk stays in `by_key` as long as the key has any watcher; the others are unlinked when they are empty.
    """

    __slots__ = ("after", "before", "first", "is_linked", "key", "last")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.first: Chunk | None = None
        """The first of the chain; `None` if that is this one, ..."""
        self.last: Chunk | None = self
        """... and then, the last one, which accepts further watchers. An emptied chunk drops its reference to itself, to avoid
        a cycle, and accepts nothing."""
        self.before: Chunk | None = None
        self.after: Chunk | None = None
        self.is_linked = True

    def nearest_linked(self) -> "Chunk":
        """This chunk, or if it was unlinked since, the nearest one before it that was not."""
        chunk: Chunk = self
        while not chunk.is_linked and chunk.before is not None:
            chunk = chunk.before
        return chunk


def _ignore(message: str, error: BaseException | None) -> None:
    """Reports nothing."""


class Watchers:
    """The watch lists of one purgatory. Only differences from `len(by_key)` are counted, so operations that have one key and
    share it with no other cost no counting.

    Args:
        report: called with a message and an exception, or `None`, when a key cannot be found again, because the result of its
            `__hash__` or `__eq__` has changed.
    """

    __slots__ = ("_extra_keys", "_extra_watchers", "_report", "by_key", "orphans")

    def __init__(self, report: Callable[[str, BaseException | None], object] = _ignore) -> None:
        self.by_key: dict[Hashable, Operation | Chunk] = {}
        self._report = report
        self._extra_watchers = 0
        """Registrations beyond the first one of each key."""
        self._extra_keys = 0
        """Registrations beyond the first one of each operation."""
        self.orphans = 0
        """Entries of `by_key` without watchers that cannot be removed, because their key has changed."""

    @property
    def registrations(self) -> int:
        """How many pairs of an operation and a key it watches there are. Cost: O(1)."""
        return len(self.by_key) - self.orphans + self._extra_watchers

    @property
    def keys(self) -> int:
        """How many keys have a watcher. Cost: O(1)."""
        return len(self.by_key) - self.orphans

    def __len__(self) -> int:
        """How many operations watch anything. Cost: O(1)."""
        return len(self.by_key) - self.orphans + self._extra_watchers - self._extra_keys

    def add(self, operation: Operation, keys: tuple[Hashable, ...]) -> None:
        """Puts `operation` at the end of the list of each of several `keys`. (For one see `Purgatory`.) Cost: O(its keys).

        Raises:
            BaseException: what a key's `__hash__` or `__eq__` raises; nothing has changed.
        """
        links: Any = keys
        by_key, at = self.by_key, 0
        try:
            for key in keys:
                waiting = by_key.setdefault(key, operation)
                if type(waiting) is Chunk and waiting.last is waiting and len(waiting) < CHUNK_CAPACITY:
                    waiting[operation] = None  # what `join` does as a rule; its call is 8 % of watching and leaving three keys
                    self._extra_watchers += 1
                elif waiting is not operation:
                    link = self.join(key, waiting, operation)
                    if type(link) is Chunk and link.first is not None:
                        links = [*keys] if links is keys else links
                        links[at] = link
                at += 1
        except BaseException:
            self._extra_keys += at
            self.remove(operation, tuple(links[:at]))
            self._extra_keys -= 1
            raise
        self._extra_keys += at - 1
        operation._op_links = links if links is keys else tuple(links)

    def join(self, key: Hashable, waiting: Any, operation: Operation) -> "Hashable | Chunk":
        """Appends `operation` to what is `waiting` under `key`, and returns its link there."""
        if type(waiting) is Chunk and waiting.last is not None and len(waiting.last) < CHUNK_CAPACITY:
            chunk: Chunk = waiting.last
        else:
            new = Chunk(key)
            # Allocation may run a finalizer, which may have changed this list just now.
            before, waiting = waiting, self.by_key.setdefault(key, operation)
            if waiting is operation:
                if (before.last is not None) if type(before) is Chunk else before._op_state is PENDING:
                    self.by_key.popitem()
                    raise _not_found(key, before)
                return key
            if type(waiting) is not Chunk:
                if waiting._op_state is not PENDING:  # an orphan: it has left, and only its key stays
                    self.by_key[key] = operation
                    self.orphans -= 1
                    return key
                self._put_into_chunk(key, waiting, new)
                waiting = new
            elif waiting.last is None:  # an orphan
                waiting.last = waiting
                self.orphans -= 1
                self._extra_watchers -= 1
            elif len(waiting.last) >= CHUNK_CAPACITY:
                new.first, new.last, new.before = waiting, None, waiting.last
                waiting.last.after = waiting.last = new
            chunk = cast(Chunk, waiting.last)
        chunk[operation] = None
        self._extra_watchers += 1
        return chunk

    def _put_into_chunk(self, key: Hashable, alone: Operation, chunk: Chunk) -> None:
        """Puts the only watcher of `key` into a new chunk, where others can join it."""
        by_key, number = self.by_key, len(self.by_key)
        chunk[alone] = None
        by_key[key] = chunk
        if len(by_key) != number:
            by_key.popitem()
            raise _not_found(key, alone)
        links = alone._op_links
        if type(links) is not tuple and links is not UNWATCHED:  # which it is while it joins the lists of its other keys
            chunk.key, alone._op_links = links, chunk

    def remove(self, operation: Operation, links: WatchLinks) -> None:
        """Takes `operation` out of all its links. Does not raise.

        Cost: O(its keys); O(all keys) if one of several has changed.
        """
        if type(links) is not tuple:
            if type(links) is not Chunk:
                self.remove_key(operation, links)
                return
            del links[operation]
            self._extra_watchers -= 1
            if not links:
                self._unlink_chunk(links)
            return
        by_key, number = self.by_key, len(links)
        alone = lost = 0
        trouble: BaseException | None = None
        self._extra_keys -= number - 1
        for link in links:
            try:
                if type(link) is Chunk:
                    chunk = link
                else:
                    chunk = by_key[link]
                    if chunk is operation:
                        alone += 1
                        self.remove_key(operation, link)
                        continue
                del chunk[operation]
                if chunk:
                    continue
            except BaseException as error:
                trouble, lost = error, lost + 1
                continue
            self._unlink_chunk(chunk)
        if trouble is not None:
            alone += lost - self._remove_by_scan(operation, trouble)
        self._extra_watchers -= number - alone
        if trouble is not None and not len(self):
            self.shrink()

    def _remove_by_scan(self, operation: Operation, trouble: BaseException) -> int:
        """Takes `operation` out of the lists that its keys no longer lead to; returns how many of them others watch, too."""
        shared = 0
        for waiting in list(self.by_key.values()):
            if waiting is operation:
                self.orphans += 1
            elif type(waiting) is Chunk and operation in waiting:
                shared += 1
                del waiting[operation]
                if not waiting:
                    self._unlink_chunk(waiting)
        error = None if isinstance(trouble, (KeyError, TypeError)) else trouble
        self._report(_key_changed(operation), error)
        return shared

    def _unlink_chunk(self, chunk: Chunk) -> None:
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
            chunk.is_linked = False
            chunk = first
        if not chunk and chunk.after is None:
            chunk.last = None
            self._extra_watchers += 1
            self.remove_key(chunk, chunk.key)

    def remove_key(self, waiting: "Operation | Chunk", key: Hashable) -> None:
        """Takes a key with its only entry out of the lists."""
        try:
            found = self.by_key.pop(key, None)
        except BaseException as error:
            found = error
        if found is not waiting:
            self.keep_orphan(waiting, key, found)

    def keep_orphan(self, waiting: "Operation | Chunk", key: Hashable, found: Any) -> None:
        """Keeps an entry that can no longer be found by its key: `found` was taken out instead, or raised.

        It stays until nothing waits at all, and counts for nothing.
        """
        error = found if isinstance(found, BaseException) else None
        if found is not None and error is None:
            self.by_key[key] = found
        self.orphans += 1
        self._report(_key_changed(waiting), error)
        if not len(self):  # which it is not while `remove` has more to do
            self.shrink()

    def shrink(self) -> None:
        """Frees the memory of an empty dictionary, which does not shrink by itself."""
        if not self.keys:
            self.by_key.clear()
            self._extra_watchers = self._extra_keys = self.orphans = 0

    def first_operations(self, key: Hashable) -> list[Operation]:
        """Those that watch `key`, in order: the first of them, at most `MAX_PER_ITERATION`; none if there is none."""
        waiting = self.by_key.get(key)
        return [] if waiting is None else first_batch(waiting)

    def operations(self, key: Hashable) -> list[Operation]:
        """All that watch `key`, in order. Cost: one pointer for each."""
        found: list[Operation] = []
        waiting = self.by_key.get(key)
        if type(waiting) is not Chunk:
            return self.first_operations(key)
        while waiting is not None:
            found += waiting
            waiting = waiting.after
        return found

    def _check(self) -> None:
        """Asserts that the lists hold exactly what their operations say that they watch. For tests."""
        actual = [(operation, key) for key in self.by_key for operation in self.operations(key)]
        operations = {operation for operation, _ in actual}
        expected = {(operation, key) for operation in operations for key in keys_of(operation._op_links)}
        assert len(actual) == len(expected) and set(actual) == expected
        assert self.registrations == len(actual) and len(self) == len(operations)
        orphans = 0
        for key, waiting in self.by_key.items():
            if type(waiting) is Chunk:
                orphans += self._check_chain(key, waiting)
            else:
                orphans += waiting._op_state is not PENDING
        assert orphans == self.orphans

    @staticmethod
    def _check_chain(key: Hashable, first: Chunk) -> bool:
        """Asserts that a chain is whole; returns whether it is a orphan."""
        assert first.key == key and first.first is None and first.before is None
        chunk: Chunk | None = first.after
        before = first
        while chunk is not None:
            assert chunk and chunk.first is first and chunk.before is before and chunk.is_linked
            before, chunk = chunk, chunk.after
        assert first.last is (before if first or first.after is not None else None)
        for each in (first, before):
            assert len(each) <= CHUNK_CAPACITY
            for operation in each:
                links = operation._op_links
                assert links is each or (type(links) is tuple and (each is first or any(link is each for link in links)))
        return not first and first.after is None


def first_batch(waiting: Operation | Chunk) -> list[Operation]:
    """The first operations of a list, in order, at most `MAX_PER_ITERATION`; none if all were removed."""
    if type(waiting) is not Chunk:
        return [] if waiting._op_state is not PENDING else [waiting]
    return list(islice(waiting or waiting.after or (), MAX_PER_ITERATION))


def as_tuple(links: WatchLinks) -> tuple[Any, ...]:
    """The links of an operation as a tuple."""
    if type(links) is tuple:
        return links
    return () if links is UNWATCHED else (links,)


def keys_of(links: WatchLinks) -> tuple[Hashable, ...]:
    """The keys of an operation's links, in the order in which it watched them."""
    if links is UNWATCHED:
        return ()
    if type(links) is not tuple:
        return (links.key if type(links) is Chunk else links,)
    return tuple([link.key if type(link) is Chunk else link for link in links])


def steps_to_leave(links: WatchLinks) -> int:
    """How much work it is to take an operation out of its lists, in operations: more than one if it has many keys."""
    return 1 + len(links) // REGISTRATIONS_PER_STEP if type(links) is tuple else 1


def _not_found(key: Hashable, waiting: Operation | Chunk) -> RuntimeError:
    return RuntimeError(f"{describe(key)}, which {describe(waiting)} watches, is not found again: what it equals has changed")


def _key_changed(waiting: Operation | Chunk) -> str:
    return f"cannot find a key again that {describe(waiting)} watched: its hash, or what it equals, has changed"
