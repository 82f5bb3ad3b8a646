"""Watch lists: for each key, the operations that watch it, in order of arrival; and the checks.

Most keys have one watcher and most operations one key, so a single watcher is stored directly, at
the cost of one dictionary entry. The second watcher turns the entry into a ring:

    by_key = {"orders-0": <Fetch A>,
              "orders-1": WatchList[<Fetch A>, <Fetch C>, <Fetch D>]}

An operation has *links*: the bare key if it is the only watcher of the key, else its place in the
ring, a `Watch`. With several keys, the links are the caller's tuple of keys, to save another tuple,
unless there is a `Watch` among them; a single watcher of a key that is joined by others keeps the
key, since it is the first one in the ring. Keys behave as keys of a dictionary: one that changes
its hash or equality meanwhile may keep an ended operation here, which is never tried, until no
operation is pending.

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

The check is a marker in the ring itself, behind the operations that it has seen: newcomers are tried
last, and operations that have left are not tried.
"""

from collections.abc import Hashable, Iterable, Iterator
from contextvars import Context, copy_context
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, Union, final

from purgatory._core.arguments import describe
from purgatory._core.kernel import compiled, constants, fields
from purgatory._core.loop import MAX_PER_ITERATION, REGISTRATIONS_PER_STEP
from purgatory._core.operation import UNWATCHED, Operation, try_once
from purgatory._core.rings import Link, Ring
from purgatory._core.states import COMPLETED, PENDING

Keys = Hashable | tuple[Hashable, ...]
"""One key, or a tuple of keys. A single key that is itself a tuple is wrapped in a tuple."""

WatchLinks = Union[Hashable, "Watch", "tuple[Hashable | Watch, ...]"]
"""The places of an operation in watch lists: `UNWATCHED` for none; a key, if it is the only
watcher; a watch; or a tuple. The tuple has a key for each list in which the operation is the only
one or the first, and a watch for each other list."""


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
class Watch(Link):
    """The place of an operation in the watch list of a key."""

    __slots__ = ("key", "operation")

    def __init__(self, operation: Operation, key: Hashable) -> None:
        self._link_ring = None
        self.operation = operation
        self.key = key


@final
@fields
class WatchList(Ring):
    """The watches of a key, in order; and a check of the key that is in progress, as a marker. When
    the last watch leaves, the list leaves `by_key`.

    Attributes:
        key: as the first watcher gave it.
        by_key: where it is; None once it has left.
    """

    __slots__ = ("by_key", "key")

    def __init__(self, key: Hashable, by_key: dict[Hashable, Any]) -> None:
        super().__init__()
        self.key = key
        self.by_key: dict[Hashable, Any] | None = by_key

    def emptied(self) -> None:
        by_key, self.by_key = self.by_key, None
        if by_key is not None:
            by_key.pop(self.key, None)

    def operations(self, most: int | None = None) -> list[Operation]:
        """The pending ones of the first operations; of all without `most`."""
        watches = [link for link in self.links(most) if type(link) is Watch]
        return [each.operation for each in watches if each.operation._op_state is PENDING]


@fields
class Watchers:
    """The watch lists of one purgatory. Counts change when operations get and lose their links."""

    __slots__ = ("_extra_keys", "by_key", "pending")

    def __init__(self) -> None:
        self.by_key: dict[Hashable, Operation | WatchList] = {}
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

    def add(self, operation: Operation, keys: tuple[Hashable, ...]) -> None:
        """Appends `operation` to the list of each of several `keys`. (For a single key see
        `Purgatory`.) Cost: O(its keys).

        Raises:
            BaseException: the exception of a key's `__hash__` or `__eq__`; nothing has changed.
        """
        links: list[Hashable | Watch] | None = None  # only if a link differs from its key
        at = 0
        try:
            for key in keys:
                link = self.join(key, operation)
                if link is not key:
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

    def join(self, key: Hashable, operation: Operation) -> "Hashable | Watch":
        """Appends `operation` to the list of `key`, and returns its link there."""
        while (waiting := self.by_key.setdefault(key, operation)) is not operation:
            watched = waiting if type(waiting) is WatchList else self._share(key, waiting)
            watch = Watch(operation, key)
            watched.append(watch)
            if watched.by_key is not None:
                return watch
            watched.remove(watch)  # a finalizer had emptied it
        return key

    def _share(self, key: Hashable, only: Any) -> WatchList:
        """Turns the entry of the only watcher of `key` into a list."""
        watched, watch = WatchList(key, self.by_key), Watch(only, key)
        watched.append(watch)
        links = only._op_links
        # UNWATCHED while the operation joins the lists of its other keys.
        is_only_key = type(links) is not tuple and links is not UNWATCHED
        if is_only_key and only._op_state is PENDING:
            watched.key = watch.key = links
            only._op_links = watch
        self.by_key[key] = watched
        if only._op_state is not PENDING:  # a finalizer has ended it
            watched.remove(watch)
        return watched

    def remove(self, operation: Operation, links: "WatchLinks") -> None:
        """Removes `operation` from all its links, which the caller has already subtracted from the
        counts. Cost: O(its keys)."""
        by_key = self.by_key
        if type(links) is tuple:
            self._extra_keys -= len(links) - 1
        else:
            links = (links,)
        for link in links:
            if type(link) is Watch:
                watch: Any = link
            else:
                waiting = by_key.get(link)
                if waiting is operation:
                    del by_key[link]
                if type(waiting) is not WatchList:
                    continue
                watch = waiting.first
                if type(watch) is not Watch:
                    watch = watch._link_after
                if watch is None or watch.operation is not operation:
                    continue
            watched = watch._link_ring
            if watched is not None:
                watched.remove(watch)

    def shrink(self) -> None:
        """Frees the memory of an empty dictionary, which does not shrink by itself. Do not call it
        while an operation joins."""
        if not self.pending:
            self._extra_keys = 0
            self.by_key.clear()

    def shared(self, key: Hashable) -> WatchList | None:
        """The list of `key`, also for a single watcher; None if there is no watcher."""
        waiting: Any = self.by_key.get(key)
        if waiting is None or type(waiting) is WatchList:
            return waiting
        watched = self._share(key, waiting)
        return watched if watched.by_key is not None else None

    def operations(self, key: Hashable, most: int | None = None) -> list[Operation]:
        """The first operations that watch `key`, in order; all without `most`. Cost: one pointer
        for each."""
        waiting: Any = self.by_key.get(key)
        if type(waiting) is WatchList:
            return waiting.operations(most)
        return [waiting] if waiting is not None and waiting._op_state is PENDING else []

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
            if type(waiting) is not WatchList:
                continue
            assert waiting.key == key and waiting.by_key is self.by_key and len(waiting)
            links = waiting.links()
            assert len(waiting) == sum(type(link) is Watch for link in links)
            for number, link in enumerate(links):
                assert link._link_ring is waiting
                if type(link) is Watch:
                    own: Any = link.operation._op_links
                    assert own is link or link in own or (key in own and number <= 1)


def keys_of(links: WatchLinks) -> tuple[Hashable, ...]:
    """The keys of an operation's links, in the order in which it watched them."""
    if links is UNWATCHED:
        return ()
    all_links: tuple[Any, ...] = links if type(links) is tuple else (links,)
    return tuple([link.key if type(link) is Watch else link for link in all_links])


def steps_to_leave(links: WatchLinks) -> int:
    """The work of removing an operation from its lists, in operations: above 1 for many keys."""
    return 1 + len(links) // REGISTRATIONS_PER_STEP if type(links) is tuple else 1


constants(keys_of=keys_of, steps_to_leave=steps_to_leave, unique_keys=unique_keys)


if TYPE_CHECKING:
    from purgatory._core.purgatory import Purgatory

_EMPTY: Final[Iterator[Watch]] = iter(())


@final
@fields
class KeyCheck(Link):
    """A check of a key: queued, in progress, or done. In progress it is a marker in the watch list."""

    __slots__ = (
        "_completed",
        "_context",
        "_home",
        "_recheck_context",
        "_remaining",
        "_tries",
        "has_begun",
        "key",
    )

    def __init__(self, home: "Purgatory[Any]", key: Hashable) -> None:
        self._home = home
        self.key = key
        self._link_ring = None
        self._begin(copy_context())

    def _begin(self, context: Context) -> None:
        """Prepares a check in which no operation has been tried yet, in the context of the code
        that requested it."""
        self._context = context
        self.has_begun = False
        """Whether the iteration over the watch list has begun."""
        self._remaining = _EMPTY
        """Watches before its own place that are not tried yet."""
        self._tries = self._completed = 0
        """Operations that were tried, and that were completed."""
        self._recheck_context: Context | None = None
        """The context of the code that requested a recheck."""

    def defer(self) -> None:
        """Queues the check in the dispatcher."""
        self._home._dispatcher.defer(self.run, self._context)

    def is_ahead(self) -> bool:
        """Whether it tries other operations before one that is watched now, and that one, too."""
        waiting = self._home._by_key.get(self.key)
        return waiting is not None and (not self.has_begun or waiting is self._link_ring)

    def request_recheck(self) -> None:
        """Requests a check of the key: this one, or if it has begun, once more."""
        if self.has_begun and self._recheck_context is None:
            self._recheck_context = copy_context()

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
                and (length_hint(self._remaining) or self._next_batch())
            ):
                spent = self._try_remaining(spent, budget)
        finally:
            dispatcher.current = self
            if length_hint(self._remaining) or (
                self._link_ring is not None and self._link_after is not None
            ):
                self.defer()
            else:
                self._end()
        return spent

    @compiled
    def _try_remaining(self, spent: int, budget: int) -> int:
        """Tries operations of the batch, while `spent` is within the budget and no work is queued;
        returns the new `spent`."""
        dispatcher = self._home._dispatcher
        queue, queued = dispatcher.queue, len(dispatcher.queue)
        for watch in self._remaining:
            operation = watch.operation
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

    def _next_batch(self) -> bool:
        """Moves on to the next operations; false if there are none."""
        watched = self._home._watchers.shared(self.key) if not self.has_begun else self._link_ring
        self.has_begun = True
        batch = [] if watched is None else watched.advance(self, MAX_PER_ITERATION)
        self._remaining = iter(batch)
        return bool(batch)

    def _end(self) -> None:
        tries, completed, home = self._tries, self._completed, self._home
        if (watched := self._link_ring) is not None:
            watched.withdraw(self)
        if self._recheck_context is not None:
            self._begin(self._recheck_context)
            self.defer()
        else:
            home._checks.pop(self.key, None)
        if tries and home._notifier is not None:
            home._notifier.key_checked(self.key, tries, completed)
