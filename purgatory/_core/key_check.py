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

from collections.abc import Hashable, Iterator
from contextvars import Context, copy_context
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, final

from purgatory._core.kernel import compiled, fields
from purgatory._core.operation import Operation, try_once
from purgatory._core.states import COMPLETED, PENDING
from purgatory._core.watch_lists import Chunk, as_tuple, steps_to_leave

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
