"""A check of a key: tries its operations in the order in which they were watched, a bounded amount
per iteration of the loop.

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

from collections import deque
from collections.abc import Hashable, Iterator
from contextvars import Context, copy_context
from operator import length_hint
from typing import Final, Protocol, final

from purgatory._core.dispatcher import Check
from purgatory._core.kernel import compiled, fields
from purgatory._core.operation import Home, Operation, try_once
from purgatory._core.states import COMPLETED, PENDING
from purgatory._core.watch_lists import Chunk, as_tuple, steps_to_leave

_EMPTY: Final[Iterator[Operation]] = iter(())


class CheckedHome(Home, Protocol):
    """The interface of a purgatory for a check of a key."""

    by_key: dict[Hashable, Operation | Chunk]

    def discard_check(self, check: "KeyCheck") -> None:
        """Called when a check is over."""


@final
@fields
class KeyCheck:
    """A check of a key: queued, in progress, or done.

    Attributes:
        completed: how many operations it has completed.
        context: the context of the code that requested it.
        has_begun: whether the iteration over the watch list has begun.
        is_done: whether it is over.
    """

    __slots__ = (
        "_chunk",
        "_completed_before",
        "_home",
        "_late_joiners",
        "_queue",
        "_recheck_context",
        "_remaining",
        "_tries",
        "completed",
        "context",
        "has_begun",
        "is_done",
        "key",
    )

    def __init__(self, home: CheckedHome, key: Hashable, queue: deque[Check]) -> None:
        self._home = home
        self.key = key
        self._queue = queue
        """The queue that it is in while there is more to do."""
        self.context = copy_context()
        self.completed = 0
        self.is_done = False
        self._reset()

    def _reset(self) -> None:
        """Prepares a check in which no operation has been tried yet."""
        self._completed_before = self.completed
        """The value of `completed` when it last began."""
        self.has_begun = False
        self._remaining = _EMPTY
        """The operations of the current chunk that are not tried yet."""
        self._chunk: Chunk | None = None
        """The current chunk."""
        self._late_joiners: list[Operation] = []
        """Operations that joined a chunk which was iterated over already."""
        self._tries = 0
        """How many operations were tried."""
        self._recheck_context: Context | None = None
        """The context of the code that requested a recheck."""

    def enqueue(self) -> None:
        """Queues the check in the dispatcher."""
        self._queue.append(self)
        self._home.dispatcher.has_backlog = True

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
        dispatcher = self._home.dispatcher
        spent = 1
        # An operation that a try claims is finished before the next try, unless a backlog runs in
        # its own iterations.
        is_first = not dispatcher.finished
        try:
            while spent <= budget:
                spent = self._try_remaining(spent, budget, is_first)
                if spent <= budget and not self._next_chunk():
                    break
        finally:
            dispatcher.current = None
            if length_hint(self._remaining) or self._late_joiners or self._has_next_chunk():
                self.enqueue()
            else:
                self._end()
        return spent

    @compiled
    def _try_remaining(self, spent: int, budget: int, is_first: bool) -> int:
        """Tries operations of the current chunk while `spent` is within the budget; returns the new
        `spent`."""
        home, dispatcher = self._home, self._home.dispatcher
        for operation in self._remaining:
            spent += 1
            if operation._op_state is PENDING:
                links = operation._op_links
                self._tries += 1
                dispatcher.current = operation
                try_once(home, operation, self.key)
                if operation._op_state is not PENDING:
                    spent += steps_to_leave(links) - 1
                    self.completed += operation._op_state is COMPLETED
                if is_first and dispatcher.finished:
                    spent += dispatcher.finish_batch(budget - spent)
            if spent > budget:
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
        first = self._home.by_key.get(self.key)
        if type(first) is not Chunk:
            return [] if first is None else [first]
        self._chunk = first
        if not first and first.after is not None:
            self._chunk = first.after
        return list(self._chunk)

    def _end(self) -> None:
        tries, completed = self._tries, self.completed - self._completed_before
        if self._recheck_context is not None:
            self.context = self._recheck_context
            self._reset()
            self.enqueue()
        else:
            self.is_done = True
            self._home.discard_check(self)
        notifier = self._home.notifier
        if tries and notifier is not None and notifier.wants_checks:
            notifier.checked(self.key, tries, completed)
