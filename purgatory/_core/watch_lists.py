"""Watch lists: for each key, the operations that watch it, in order of arrival; and the checks.

Most keys have one watcher and most operations one key, so a single watcher is stored directly, at
the cost of one dictionary entry. The second watcher turns the entry into a *chunk*, an ordered
dictionary from which each operation can be removed in O(1). A chunk holds 4,096 operations; when it
is full, the next watcher opens a new chunk. So a list of a million is iterated over by chunks while
it changes, and is never copied:

    by_key = {"orders-0": <Fetch A>,
              "orders-1": Chunk{<Fetch A>, ... 4096} -> Chunk{<Fetch C>, ... 4096} ->
                          Chunk{<Fetch D>}}

An operation has *links*: the bare key if it is the only watcher of the key, else its chunk. With
several keys, the links are the caller's tuple of keys, to save another tuple: the first chunk of a
key is found by the key, and any other chunk replaces its key in the tuple. Keys behave as keys of a
dictionary: one that changes its hash or equality meanwhile may keep an ended operation here, which
is never tried, until no operation is pending.

Kafka's counterpart, the `Watchers` of `DelayedOperationPurgatory`, keeps completed operations until
a purge finds them (KAFKA-19928: until the memory is gone). Here an operation leaves all its lists
when it ends.

A check of a key tries its operations in the order in which they were watched, a bounded amount per
iteration of the loop.

    check_and_complete(key) in any hook      queues a check, even if the key is not watched yet
    for a key that is queued already         does nothing: one check serves all requests before it
                                             begins
    for a key whose check is in progress     it is checked once more afterwards, however often that
                                             is requested
    a new operation under such a key         is not tried at first, but at the end of the check, so
                                             that the order is kept

The watch list is iterated over by chunks and never copied, so the cost of the first iteration
depends only on the operations that it tries. Operations removed meanwhile are not tried; operations
added meanwhile are tried last.
"""

from collections.abc import Hashable, Iterable, Iterator
from contextvars import Context, copy_context
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, Union, final

from purgatory._core.arguments import describe
from purgatory._core.kernel import compiled, constants, fields
from purgatory._core.loop import MAX_PER_ITERATION, REGISTRATIONS_PER_STEP
from purgatory._core.operation import UNWATCHED, Operation, try_once
from purgatory._core.states import COMPLETED, PENDING

Keys = Hashable | tuple[Hashable, ...]
"""One key, or a tuple of keys. A single key that is itself a tuple is wrapped in a tuple."""

WatchLinks = Union[Hashable, "Chunk", "tuple[Hashable | Chunk, ...]"]
"""The lists that an operation is in: `UNWATCHED` for none; a key, if it is the only watcher; a
chunk; or a tuple. The tuple has a key for each list in which the operation is the only watcher or
in the first chunk, and a chunk for each other list."""


CHUNK_CAPACITY: Final = 4096
"""The capacity of a chunk, in operations; a power of two, as the kernel expects. Copying a full
chunk takes 20 us. With smaller chunks, more operations would have to store their chunks."""


def unique_keys(keys: Iterable[Hashable]) -> Keys:
    """The different keys among `keys`, in order.

    Raises:
        ValueError: `keys` is empty.
        TypeError: a key is not hashable; or `keys` is not a collection, or is a string, since its
            characters are hardly meant as keys.
    """
    if type(keys) is tuple and 1 < len(keys) == len({*keys}):
        return keys
    if isinstance(keys, (str, bytes)):
        raise TypeError(
            f"keys must be a collection of keys, got one string: pass [{keys!r}] to watch it"
        )
    try:
        iterator = iter(keys)
    except TypeError:
        raise TypeError(
            f"keys must be a collection of keys, got {describe(keys)}: pass [{describe(keys)}] "
            "to watch it"
        ) from None
    different = list(dict.fromkeys(iterator))
    if not different:
        raise ValueError(
            "keys must name at least one key: without one, only the deadline could end the wait"
        )
    return tuple(different) if len(different) > 1 or type(different[0]) is tuple else different[0]


@final
@fields
class Chunk(dict[Operation, None]):
    """Up to `CHUNK_CAPACITY` operations that watch a key, in order.

    The first chunk stays in `by_key` as long as the key has any watcher; the others are unlinked
    when they are empty.
    """

    __slots__ = ("after", "before", "first", "is_linked", "key", "last")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.first: Chunk | None = None
        """First chunk of the chain; `None` in the first chunk itself."""
        self.last: Chunk | None = self
        """Last chunk of the chain, which accepts further watchers; only the first chunk has it. An
        emptied first chunk drops its reference to itself, to avoid a cycle, and accepts none."""
        self.before: Chunk | None = None
        self.after: Chunk | None = None
        self.is_linked = True

    def __repr__(self) -> str:
        return f"<Chunk of {len(self)} operations>"

    def nearest_linked(self) -> "Chunk":
        """This chunk, or, if it was unlinked meanwhile, the nearest linked chunk before it."""
        chunk: Chunk = self
        while not chunk.is_linked and chunk.before is not None:
            chunk = chunk.before
        return chunk


@fields
class Watchers:
    """The watch lists of one purgatory. Counts change when operations get and lose their links."""

    __slots__ = ("_extra_keys", "by_key", "pending")

    def __init__(self) -> None:
        self.by_key: dict[Hashable, Operation | Chunk] = {}
        self.pending = 0
        """Number of operations with links."""
        self._extra_keys = 0
        """Number of registrations beyond the first registration of each operation."""

    @property
    def registrations(self) -> int:
        """Number of pairs of an operation and a watched key. Cost: O(1)."""
        return self.pending + self._extra_keys if self.pending else 0

    def __len__(self) -> int:
        """Number of operations that watch a key. Cost: O(1)."""
        return self.pending

    @compiled
    def add(self, operation: Operation, keys: tuple[Hashable, ...]) -> None:
        """Appends `operation` to the list of each of several `keys`. (For a single key see
        `Purgatory`.) Cost: O(its keys).

        Raises:
            BaseException: the exception of a key's `__hash__` or `__eq__`; nothing has changed.
        """
        links: list[Hashable | Chunk] | None = None  # only if a link differs from its key
        by_key, at = self.by_key, 0
        try:
            for key in keys:
                waiting = by_key.setdefault(key, operation)
                if waiting is not operation:
                    link = self.join(key, waiting, operation)
                    if type(link) is Chunk and link.first is not None:
                        links = links or [*keys]
                        links[at] = link
                at += 1
        except BaseException:
            self._extra_keys += at - 1
            self.remove(operation, tuple((links or keys)[:at]))
            raise
        self.pending += 1
        self._extra_keys += at - 1
        operation._op_links = tuple(links) if links else keys

    @compiled
    def join(
        self, key: Hashable, waiting: "Operation | Chunk", operation: Operation
    ) -> "Hashable | Chunk":
        """Appends `operation` to the entry `waiting` under `key`, and returns its link there."""
        if (
            type(waiting) is Chunk
            and waiting.last is not None
            and len(waiting.last) < CHUNK_CAPACITY
        ):
            chunk: Chunk = waiting.last
            chunk[operation] = None
            return chunk
        new = Chunk(key)
        # Allocation may run a finalizer, which may have changed this list just now.
        waiting = self.by_key.setdefault(key, operation)
        if waiting is operation:
            return key
        if type(waiting) is not Chunk:
            new[waiting] = new[operation] = None
            links = waiting._op_links
            # `links` is UNWATCHED while the operation joins the lists of its other keys.
            if type(links) is not tuple and links is not UNWATCHED:
                new.key, waiting._op_links = links, new
            self.by_key[key] = new
            return new
        chunk = waiting if waiting.last is None else waiting.last
        if len(chunk) >= CHUNK_CAPACITY:
            new.first, new.last, new.before = waiting, None, chunk
            chunk.after = waiting.last = chunk = new
        chunk[operation] = None
        return chunk

    @compiled
    def remove(self, operation: Operation, links: "WatchLinks") -> None:
        """Removes `operation` from all its links, which the caller has already subtracted from the
        counts. Cost: O(its keys)."""
        by_key = self.by_key
        if type(links) is tuple:
            self._extra_keys -= len(links) - 1
        else:
            links = (links,)
        for link in links:
            waiting = link if type(link) is Chunk else by_key.get(link)
            if waiting is operation:
                del by_key[link]  # type: ignore[arg-type]  # not a chunk
            elif type(waiting) is Chunk and operation in waiting:
                del waiting[operation]
                if not waiting:
                    self._unlink_chunk(waiting)

    def _unlink_chunk(self, chunk: Chunk) -> None:
        """Removes an empty chunk from its chain, and the key from the lists if it was the only
        chunk."""
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
            self.by_key.pop(chunk.key, None)

    def shrink(self) -> None:
        """Frees the memory of an empty dictionary, which does not shrink by itself. Do not call it
        while an operation joins."""
        if not self.pending:
            self._extra_keys = 0
            self.by_key.clear()

    def first_operations(self, key: Hashable) -> list[Operation]:
        """The first operations that watch `key`, in order, at most `MAX_PER_ITERATION`."""
        waiting = self.by_key.get(key)
        return [] if waiting is None else first_batch(waiting)

    def operations(self, key: Hashable) -> list[Operation]:
        """All operations that watch `key`, in order. Cost: one pointer for each."""
        found: list[Operation] = []
        waiting = self.by_key.get(key)
        if type(waiting) is not Chunk:
            return self.first_operations(key)
        chunk: Chunk | None = waiting
        while chunk is not None:
            found += chunk
            chunk = chunk.after
        return found

    def _check(self) -> None:
        """Asserts that the lists match the links of their operations. For tests."""
        actual = [(operation, key) for key in self.by_key for operation in self.operations(key)]
        operations = {operation for operation, _ in actual}
        expected = {
            (operation, key) for operation in operations for key in keys_of(operation._op_links)
        }
        assert len(actual) == len(expected) and set(actual) == expected
        assert self.registrations == len(actual) and len(self) == len(operations)
        for key, waiting in self.by_key.items():
            if type(waiting) is Chunk:
                self._check_chain(key, waiting)
            else:
                assert waiting._op_state is PENDING

    @staticmethod
    def _check_chain(key: Hashable, first: Chunk) -> None:
        """Asserts that a chain is whole."""
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
                assert links is each or (
                    type(links) is tuple and (each is first or any(link is each for link in links))
                )
        assert first or first.after is not None


def first_batch(waiting: Operation | Chunk) -> list[Operation]:
    """The first pending operations of a list, in order, at most `MAX_PER_ITERATION`; empty if all
    were removed."""
    if type(waiting) is not Chunk:
        return [] if waiting._op_state is not PENDING else [waiting]
    chunk: Chunk | None = waiting
    found: list[Operation] = []
    while chunk is not None and not found:
        found = list(
            islice((each for each in chunk if each._op_state is PENDING), MAX_PER_ITERATION)
        )
        chunk = chunk.after
    return found


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
    """The work of removing an operation from its lists, in operations: above 1 for many keys."""
    return 1 + len(links) // REGISTRATIONS_PER_STEP if type(links) is tuple else 1


constants(keys_of=keys_of, steps_to_leave=steps_to_leave, unique_keys=unique_keys)


if TYPE_CHECKING:
    from purgatory._core.purgatory import Purgatory

_EMPTY: Final[Iterator[Operation]] = iter(())


@final
@fields
class KeyCheck:
    """A check of a key: queued, in progress, or done.

    Attributes:
        has_begun: whether the iteration over the watch list has begun.
    """

    __slots__ = (
        "_chunk",
        "_completed",
        "_context",
        "_home",
        "_late_joiners",
        "_recheck_context",
        "_remaining",
        "_tries",
        "has_begun",
        "key",
    )

    def __init__(self, home: "Purgatory[Any]", key: Hashable) -> None:
        self._home = home
        self.key = key
        self._begin(copy_context())

    def _begin(self, context: Context) -> None:
        """Prepares a check in which no operation has been tried yet, in the context of the code
        that requested it."""
        self._context = context
        self.has_begun = False
        self._remaining = _EMPTY
        """Operations of the current chunk that are not tried yet."""
        self._chunk: Chunk | None = None
        """The current chunk."""
        self._late_joiners: list[Operation] = []
        """Operations that joined a chunk which was iterated over already."""
        self._tries = self._completed = 0
        """Operations that were tried, and that were completed."""
        self._recheck_context: Context | None = None
        """The context of the code that requested a recheck."""

    def defer(self) -> None:
        """Queues the check in the dispatcher."""
        self._home._dispatcher.defer(self.run, self._context)

    def request_recheck(self) -> None:
        """Requests a check of the key: this one, or if it has begun, once more."""
        if self.has_begun and self._recheck_context is None:
            self._recheck_context = copy_context()

    def on_join(self, operation: Operation) -> None:
        """Called when `operation` watches the key, and was not tried."""
        if not self.has_begun:
            return
        if self._chunk is not None:
            here = self._chunk.nearest_linked()
            # The first chunk may be empty, and therefore false.
            first = here if here.first is None else here.first
            links = as_tuple(operation._op_links)
            if any(
                type(link) is Chunk and link.first is first and link is not here for link in links
            ):
                return  # the iteration will reach that chunk
        self._late_joiners.append(operation)

    def run(self, budget: int) -> int:
        """Tries operations for up to `budget` steps, and queues itself again if there are more.
        Returns how many steps it took."""
        dispatcher, spent = self._home._dispatcher, 1
        queue, queued = dispatcher.queue, len(dispatcher.queue)
        try:
            # A try that has caused work is followed by that work.
            while (
                spent <= budget
                and len(queue) == queued
                and (length_hint(self._remaining) or self._next_chunk())
            ):
                spent = self._try_remaining(spent, budget)
        finally:
            dispatcher.current = self
            if length_hint(self._remaining) or self._late_joiners or self._has_next_chunk():
                self.defer()
            else:
                self._end()
        return spent

    @compiled
    def _try_remaining(self, spent: int, budget: int) -> int:
        """Tries operations of the current chunk, while `spent` is within the budget and no work is
        queued; returns the new `spent`."""
        dispatcher = self._home._dispatcher
        queue, queued = dispatcher.queue, len(dispatcher.queue)
        for operation in self._remaining:
            spent += 1
            if operation._op_state is PENDING:
                links = operation._op_links
                self._tries += 1
                dispatcher.current = operation
                try_once(operation, self.key)
                if operation._op_state is not PENDING:
                    spent += steps_to_leave(links) - 1
                    if operation._op_state is COMPLETED:
                        self._completed += 1
                        dispatcher.completed += 1
            if spent > budget or len(queue) > queued:
                break
        return spent

    def _has_next_chunk(self) -> bool:
        return self._chunk is not None and self._chunk.nearest_linked().after is not None

    def _next_chunk(self) -> bool:
        """Moves on to the operations that joined this chunk late, then to the next chunk; false if
        there are none."""
        found: list[Operation] = []
        if not self.has_begun:
            self.has_begun = True
            found = self._first_chunk()
        elif self._late_joiners:
            found, self._late_joiners = self._late_joiners, found
        elif self._chunk is not None and (chunk := self._chunk.nearest_linked().after) is not None:
            self._chunk, found = chunk, list(chunk)
        self._remaining = iter(found)
        return bool(found)

    def _first_chunk(self) -> list[Operation]:
        first = self._home._by_key.get(self.key)
        if type(first) is not Chunk:
            return [] if first is None else [first]
        self._chunk = first
        if not first and first.after is not None:
            self._chunk = first.after
        return list(self._chunk)

    def _end(self) -> None:
        tries, completed, notifier = self._tries, self._completed, self._home._notifier
        if self._recheck_context is not None:
            self._begin(self._recheck_context)
            self.defer()
        else:
            self._home._checks.pop(self.key, None)
        if tries and notifier is not None:
            notifier.key_checked(self.key, tries, completed)
