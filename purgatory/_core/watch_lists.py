"""Watch lists: for each key, the operations that watch it, in order of arrival.

Most keys have one watcher, so a single watcher is stored directly, at the cost of one dictionary
entry. The second watcher turns the entry into a `WatchList`:

    {"orders-0": <Fetch A>,
     "orders-1": WatchList(<Fetch A>, <Fetch C>, <Fetch D>)}

Keys behave as keys of a dictionary: one that changes its hash or equality meanwhile may keep an
ended operation here, which is never tried, until no operation is pending.

Kafka's counterpart, the `Watchers` of `DelayedOperationPurgatory`, keeps completed operations until
a purge finds them (KAFKA-19928: until the memory is gone). Here an operation leaves all its lists
when it ends.

A list knows which operation its check tries next, so a check copies nothing, and operations may join
and leave between two tries.

A call may run finalizers, in which operations leave but none join. So an operation joins a list
without a call between the look at the list and the link.
"""

from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Any, Final, Protocol, final

from purgatory._core.arguments import describe
from purgatory._core.kernel import compiled, constants, fields
from purgatory._core.loop import REGISTRATIONS_PER_STEP
from purgatory._core.states import PENDING, OperationState

Keys = Hashable | tuple[Hashable, ...]
"""One key, or a tuple of keys. A single key that is itself a tuple is wrapped in a tuple."""

UNWATCHED: Final[Any] = object()
"""The keys of an operation that is in no watch list."""


class Watcher(Protocol):
    """An operation, as far as watch lists are concerned."""

    _op_state: OperationState


def unique_keys(keys: Iterable[Hashable]) -> Keys:
    """The different keys among `keys`, in order.

    Raises:
        ValueError: `keys` is empty.
        TypeError: a key is not hashable; or `keys` is not a collection, or is a string, since its
            characters are hardly meant as keys.
    """
    if (type(keys) is tuple or type(keys) is list) and len(keys) == 1:  # most have one
        [key] = keys
        hash(key)
        return (key,) if type(key) is tuple else key
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


def keys_of(keys: Keys) -> tuple[Hashable, ...]:
    """The keys that an operation watches, as a tuple; empty for `UNWATCHED`."""
    return () if keys is UNWATCHED else keys if type(keys) is tuple else (keys,)


def steps_to_leave(keys: Keys) -> int:
    """The work of removing an operation from its lists, in operations: above 1 for many keys."""
    return 1 + len(keys) // REGISTRATIONS_PER_STEP if type(keys) is tuple else 1


constants(UNWATCHED=UNWATCHED)
constants(keys_of=keys_of, steps_to_leave=steps_to_leave, unique_keys=unique_keys)


class Link:
    """The place of an operation in a `WatchList`. Without an `__init__`: its call would be a
    quarter of `WatchLists.join`."""

    __slots__ = ("after", "before", "operation")

    operation: Any
    before: "Link | None"
    after: "Link | None"


@final
@fields
class WatchList:
    """The operations of one key, in the order in which they joined. Any leaves in O(1).

    Attributes:
        links: the link of each operation. The kernel has these in the operations.
        first, last: the ends of the chain of links; None when the last operation has left.
        untried: the first link that the check of the key has still to try; None without one.
    """

    __slots__ = ("first", "last", "links", "untried")

    def __init__(self, operation: Watcher) -> None:
        link = Link()
        link.operation = operation
        link.before = link.after = None
        self.links = {operation: link}
        self.first: Link | None = link
        self.last: Link | None = link
        self.untried: Link | None = link

    def __len__(self) -> int:
        return len(self.links)

    def entries(self, most: int | None = None) -> list[Any]:
        """The first operations, in order; all without `most`."""
        return list(islice(self.links, most))

    def has_untried(self) -> bool:
        """Whether an operation is untried."""
        return self.untried is not None

    def rewind(self) -> None:
        """Makes all operations untried."""
        self.untried = self.first


@final
class WatchLists(dict[Hashable, Any]):
    """The operations that watch each key: one, or the `WatchList` of several."""

    __slots__ = ()

    @compiled
    def join(self, operation: Watcher, keys: Keys) -> None:
        """Appends `operation` to the list of each key. Cost: O(its keys).

        Raises:
            BaseException: the exception of a key's `__hash__` or `__eq__`; nothing has changed.
        """
        all_keys, joined = keys_of(keys), 0
        try:
            for key in all_keys:
                while (waiting := self.setdefault(key, operation)) is not operation:
                    if waiting.__class__ is not WatchList:
                        self.listed(key)
                        continue
                    link = Link()
                    last = waiting.last
                    if last is not None:  # else a finalizer has emptied it
                        link.operation = operation
                        link.before = last
                        link.after = None
                        last.after = waiting.last = waiting.links[operation] = link
                        if waiting.untried is None:
                            waiting.untried = link
                        break
                joined += 1
        except BaseException:
            self.leave(operation, all_keys[:joined])
            raise

    @compiled
    def leave(self, operation: Watcher, keys: Keys) -> None:
        """Removes `operation` from the list of each key. Cost: O(its keys)."""
        for key in keys if type(keys) is tuple else (keys,):
            waiting: Any = self.get(key)
            if waiting is operation:
                del self[key]
            elif waiting.__class__ is WatchList:
                link = waiting.links.pop(operation, None)
                if link is None:
                    continue
                before, after = link.before, link.after
                if before is None:
                    waiting.first = after
                else:
                    before.after = after
                if after is None:
                    waiting.last = before
                else:
                    after.before = before
                if waiting.untried is link:
                    waiting.untried = after
                if before is after:  # both are None
                    self.pop(key, None)  # unless a finalizer was first

    @compiled
    def listed(self, key: Hashable) -> WatchList | None:
        """The list of `key`, which is made for a single operation; None if nothing waits."""
        waiting = self.get(key)
        if waiting is None or waiting.__class__ is WatchList:
            return waiting
        self[key] = operations = WatchList(waiting)
        if waiting._op_state is not PENDING:  # a finalizer has ended it
            self.leave(waiting, (key,))
        return operations

    def operations(self, key: Hashable, most: int | None = None) -> list[Any]:
        """The first operations that watch `key`, in order; all without `most`. Cost: one pointer
        for each."""
        waiting: Any = self.get(key)
        found = waiting.entries(most) if type(waiting) is WatchList else [waiting]
        return [each for each in found if each is not None and each._op_state is PENDING]
