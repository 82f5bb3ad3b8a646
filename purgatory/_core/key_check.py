"""A check of a key: it tries the operations that watch the key, in the order in which they came, a
bounded amount per iteration of the loop.

    check_and_complete(key) in any hook      queues a check, even if the key is not watched yet
    for a key that is queued already         does nothing: one check serves all requests before it
                                             starts
    for a key with a check in progress       it is checked once more afterwards, however often that
                                             is requested
    a new operation under such a key         is not tried at first, but at the end of the check, so
                                             that the order is kept
"""

from collections.abc import Hashable
from contextvars import copy_context
from typing import final

from purgatory._core.home import Home
from purgatory._core.kernel import compiled, fields
from purgatory._core.observers import KEY
from purgatory._core.operation import try_once
from purgatory._core.states import COMPLETED, PENDING
from purgatory._core.watch_lists import WatchList, steps_to_leave


@final
@fields
class KeyCheck:
    """A check of a key: queued, in progress, or done."""

    __slots__ = (
        "_completed",
        "_context",
        "_has_begun",
        "_home",
        "_recheck",
        "_tries",
        "key",
    )

    def __init__(self, home: Home, key: Hashable) -> None:
        self._home = home
        self.key = key
        self._context = copy_context()
        """Of the code that requested it."""
        self._has_begun = False
        self._tries = self._completed = 0
        """Operations that were tried, and that were completed."""
        self._recheck: KeyCheck | None = None
        """The check that follows this one."""

    def defer(self) -> None:
        """Queues the check in the dispatcher."""
        self._home._dispatcher.defer(self.run, self._context)

    def request_recheck(self) -> None:
        """Requests a check of the key: this one or, if it has started, one more."""
        if self._has_begun and self._recheck is None:
            self._recheck = KeyCheck(self._home, self.key)

    def run(self, budget: int) -> int:
        """Tries operations for up to `budget` steps, and queues itself again if there are more.
        Returns how many steps it took."""
        by_key, spent, self._has_begun = self._home._by_key, 1, True
        try:
            operations = by_key.listed(self.key)
            if operations is not None:
                spent = self._try_untried(operations, budget)
        finally:
            operations = by_key.listed(self.key)
            if operations is not None and operations.has_untried():
                self.defer()
            else:
                self._end(operations)
        return spent

    @compiled
    def _try_untried(self, operations: WatchList, budget: int) -> int:
        """Tries operations for up to `budget` steps; returns how many steps it took. A try that has
        caused work is followed by that work."""
        dispatcher = self._home._dispatcher
        queue, queued, spent = dispatcher.queue, len(dispatcher.queue), 1
        while spent <= budget and len(queue) <= queued and operations.untried is not None:
            operation = operations.untried.operation
            operations.untried = operations.untried.after
            spent += 1
            if operation._op_state is PENDING:
                keys = operation._op_keys
                self._tries += try_once(operation, self.key, KEY)
                if operation._op_state is not PENDING:
                    spent += steps_to_leave(keys) - 1
                    if operation._op_state is COMPLETED:  # type: ignore[comparison-overlap]  # by now
                        self._completed += 1
                        dispatcher.completed += 1
        return spent

    def _end(self, operations: WatchList | None) -> None:
        home = self._home
        if operations is not None:
            operations.rewind()
        if self._recheck is not None:
            home._checks[self.key] = self._recheck
            self._recheck.defer()
        else:
            home._checks.pop(self.key, None)
        if self._tries and home._notifier is not None:
            home._notifier.key_checked(self.key, self._tries, self._completed)
