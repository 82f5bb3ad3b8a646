"""Watch lists: for each key, the operations that watch it, in order of arrival; and the checks.

Most keys have one watcher, so a single watcher is stored directly, at the cost of one dictionary
entry. The second watcher turns the entry into a dictionary used as an ordered set, and a check that
begins puts itself in the place of that dictionary:

    {"orders-0": <Fetch A>,
     "orders-1": {<Fetch A>: None, <Fetch C>: None, <Fetch D>: None},
     "orders-2": KeyCheck(watchers={<Fetch A>: None, ...}, newcomers={<Fetch E>: None}, left=[])}

Keys behave as keys of a dictionary: one that changes its hash or equality meanwhile may keep an
ended operation here, which is never tried, until no operation is pending.

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

A check iterates over the dictionary itself, so a list of any length is never copied. Meanwhile
newcomers wait beside it, and operations that end are removed from it afterwards.

Allocations and calls may run finalizers, in which operations leave but none join. So each method
looks up and links without a call in between.
"""

from collections.abc import Hashable, Iterable, Iterator
from contextvars import Context, copy_context
from itertools import chain, islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, final

from purgatory._core.arguments import describe
from purgatory._core.kernel import compiled, constants, fields
from purgatory._core.loop import REGISTRATIONS_PER_STEP
from purgatory._core.operation import UNWATCHED, Operation, try_once
from purgatory._core.states import COMPLETED, PENDING

Keys = Hashable | tuple[Hashable, ...]
"""One key, or a tuple of keys. A single key that is itself a tuple is wrapped in a tuple."""


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


def keys_of(keys: Keys) -> tuple[Hashable, ...]:
    """The keys that an operation watches, as a tuple; empty for `UNWATCHED`."""
    return () if keys is UNWATCHED else keys if type(keys) is tuple else (keys,)


def steps_to_leave(keys: Keys) -> int:
    """The work of removing an operation from its lists, in operations: above 1 for many keys."""
    return 1 + len(keys) // REGISTRATIONS_PER_STEP if type(keys) is tuple else 1


constants(keys_of=keys_of, steps_to_leave=steps_to_leave, unique_keys=unique_keys)


@final
class WatchLists(dict[Hashable, Any]):
    """The operations that watch each key: one, a dictionary of several, or the `KeyCheck` that
    tries them."""

    __slots__ = ()

    def join(self, operation: Operation, keys: Keys) -> None:
        """Appends `operation` to the list of each key. Cost: O(its keys).

        Raises:
            BaseException: the exception of a key's `__hash__` or `__eq__`; nothing has changed.
        """
        all_keys, joined = keys_of(keys), 0
        try:
            for key in all_keys:
                while (waiting := self.setdefault(key, operation)) is not operation:
                    kind = waiting.__class__
                    if kind is not dict and kind is not KeyCheck:
                        self[key] = {waiting: None, operation: None}
                        if waiting._op_state is not PENDING:  # a finalizer has ended it
                            self.leave(waiting, (key,))
                        break
                    if kind is KeyCheck:
                        waiting.newcomers[operation] = None
                        if self.get(key) is waiting:
                            break
                        del waiting.newcomers[operation]
                    elif waiting:
                        waiting[operation] = None
                        break
                    # A finalizer has emptied it, so it has left.
                joined += 1
        except BaseException:
            self.leave(operation, all_keys[:joined])
            raise

    def leave(self, operation: Operation, keys: Keys) -> None:
        """Removes `operation` from the list of each key. Cost: O(its keys)."""
        for key in keys if type(keys) is tuple else (keys,):
            waiting: Any = self.get(key)
            kind = waiting.__class__
            if waiting is operation:
                del self[key]
                continue
            if kind is dict:
                waiting.pop(operation, None)
                is_empty = not waiting
            else:
                is_empty = kind is KeyCheck and waiting.remove(operation)
            if is_empty:
                self.pop(key, None)  # unless a finalizer was first

    def operations(self, key: Hashable, most: int | None = None) -> list[Operation]:
        """The first operations that watch `key`, in order; all without `most`. Cost: one pointer
        for each."""
        waiting: Any = self.get(key, {})
        if not isinstance(waiting, (dict, KeyCheck)):
            waiting = (waiting,)
        return list(islice((each for each in waiting if each._op_state is PENDING), most))


if TYPE_CHECKING:
    from purgatory._core.purgatory import Purgatory


@final
@fields
class KeyCheck:
    """A check of a key: queued, in progress, or done.

    Attributes:
        watchers: the operations under the key, once it has begun; not changed while it is iterated
            over.
        newcomers: those that have joined since, which are tried at the end.
        left: those that have ended since.
        has_begun: whether it is in progress, or done.
    """

    __slots__ = (
        "_completed",
        "_context",
        "_home",
        "_recheck_context",
        "_tries",
        "_untried",
        "has_begun",
        "key",
        "left",
        "newcomers",
        "watchers",
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
        self.watchers: dict[Operation, None] = {}
        self.newcomers: dict[Operation, None] = {}
        self.left: list[Operation] = []
        self._untried = iter(self.watchers)
        self._tries = self._completed = 0
        """Operations that were tried, and that were completed."""
        self._recheck_context: Context | None = None
        """The context of the code that requested a recheck."""

    def __len__(self) -> int:
        return len(self.watchers) - len(self.left) + len(self.newcomers)

    def __iter__(self) -> Iterator[Operation]:
        return chain(self.watchers, self.newcomers)

    def remove(self, operation: Operation) -> bool:
        """Removes an operation. Returns whether it was the last one."""
        if operation in self.newcomers:
            del self.newcomers[operation]
        else:
            self.left.append(operation)
        return len(self.left) == len(self.watchers) and not self.newcomers

    def defer(self) -> None:
        """Queues the check in the dispatcher."""
        self._home._dispatcher.defer(self.run, self._context)

    def is_ahead(self) -> bool:
        """Whether it tries other operations before one that is watched now, and that one, too."""
        waiting = self._home._by_key.get(self.key)
        return waiting is not None and (not self.has_begun or waiting is self)

    def request_recheck(self) -> None:
        """Requests a check of the key: this one, or if it has begun, once more."""
        if self.has_begun and self._recheck_context is None:
            self._recheck_context = copy_context()

    def run(self, budget: int) -> int:
        """Tries operations for up to `budget` steps, and queues itself again if there are more.
        Returns how many steps it took."""
        dispatcher, spent = self._home._dispatcher, 1
        queue, queued = dispatcher.queue, len(dispatcher.queue)
        if not self.has_begun:
            self._take_over()
        try:
            # A try that has caused work is followed by that work.
            while spent <= budget and len(queue) == queued and self._has_next():
                spent = self._try_next(spent, budget)
        finally:
            dispatcher.current = self
            has_next = self._has_next()
            if not has_next:
                spent += self._remove_left(budget - spent)
            if has_next or self.left:
                self.defer()
            else:
                self._end()
        return spent

    def _take_over(self) -> None:
        """Puts itself in the place of the operations under its key."""
        by_key, self.has_begun = self._home._by_key, True
        waiting = by_key.get(self.key)
        if waiting is not None:
            self.watchers = waiting if type(waiting) is dict else {waiting: None}
            self._untried = iter(self.watchers)
            by_key[self.key] = self

    def _has_next(self) -> bool:
        """Whether an operation is left to be tried."""
        if self.newcomers and not length_hint(self._untried):
            newcomers, self.newcomers = self.newcomers, {}
            self.watchers.update(newcomers)
            self._untried = iter(newcomers)
        return length_hint(self._untried) > 0

    @compiled
    def _try_next(self, spent: int, budget: int) -> int:
        """Tries operations while `spent` is within the budget and no work is queued; returns the
        new `spent`."""
        dispatcher = self._home._dispatcher
        queue, queued = dispatcher.queue, len(dispatcher.queue)
        for operation in self._untried:
            spent += 1
            if operation._op_state is PENDING:
                keys = operation._op_keys
                self._tries += 1
                dispatcher.current = operation
                try_once(operation, self.key)
                if operation._op_state is not PENDING:
                    spent += steps_to_leave(keys) - 1
                    if operation._op_state is COMPLETED:
                        self._completed += 1
                        dispatcher.completed += 1
            if spent > budget or len(queue) > queued:
                break
        return spent

    def _remove_left(self, budget: int) -> int:
        """Removes the ended operations from the dictionary, for up to `budget` steps; returns the
        number of steps."""
        number = min(len(self.left), max(budget, 0) * REGISTRATIONS_PER_STEP)
        if number == len(self.watchers):
            self.watchers, self.left = {}, []
        else:
            for _ in range(number):
                self.watchers.pop(self.left.pop(), None)
        return number // REGISTRATIONS_PER_STEP

    def _end(self) -> None:
        tries, completed, home = self._tries, self._completed, self._home
        by_key, watchers = home._by_key, self.watchers
        only = next(iter(watchers)) if len(watchers) == 1 else None
        if self.key in by_key and by_key[self.key] is self:
            by_key[self.key] = watchers if only is None else only
        if self._recheck_context is not None:
            self._begin(self._recheck_context)
            self.defer()
        else:
            home._checks.pop(self.key, None)
        if tries and home._notifier is not None:
            home._notifier.key_checked(self.key, tries, completed)
