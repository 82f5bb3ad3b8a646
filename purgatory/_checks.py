"""A check of a key: tries who watches it, in the order in which they came, a portion per turn of the loop.

    check_and_complete(key) in any hook     puts a check in line, also if nobody watches the key yet
    for a key that is in line already       stays where it is: one check serves all who asked before it began
    for a key whose check is in progress    it is checked once more afterwards, however often that is asked for
    an operation that comes to such a key   is not tried at first, but at the end of the check: nobody jumps the queue

The watch list is walked a chunk at a time and never copied, so the first turn costs a portion, however many wait. Those that
leave are not met any more, those that join are met last.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from itertools import islice
from operator import length_hint
from typing import Any, Final, Protocol, final

from purgatory import _life
from purgatory._dispatcher import Check
from purgatory._life import try_once
from purgatory._operation import DelayedOperation
from purgatory._state import COMPLETED, PENDING
from purgatory._watchers import Chunk, each_of

Operation = DelayedOperation[Any]

_NO_ONE: Final[Iterator[Operation]] = iter(())


class Engine(_life.Engine, Protocol):
    """What a check needs of its purgatory."""

    def forget_check(self, check: "KeyCheck") -> None: ...


@final
class KeyCheck:
    """A check of a key: in line, in progress, or over.

    It walks the watch list a chunk at a time. Operations that join the list meanwhile are met at its end.
    """

    __slots__ = ("again", "before", "completed", "engine", "is_over", "key", "late", "line", "tried", "waiting", "walked")

    def __init__(self, engine: Engine, key: Hashable, line: deque[Check]) -> None:
        self.engine = engine
        self.key = key
        self.line = line
        """In which it stands while there is more to do."""
        self.completed = 0
        self.is_over = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """Nobody has been tried yet."""
        self.before = self.completed
        """How many it had completed when it began for the last time."""
        self.waiting: Iterator[Operation] | None = None
        """Who is yet to be tried of those that were seen so far; `None` before it has begun."""
        self.walked: Chunk | None = None
        """The chunk that they are in."""
        self.late: list[Operation] = []
        """Those that have joined where it has looked already."""
        self.tried = 0
        """How many, if an observer wants to know."""
        self.again = False
        """Whether it was asked for once more."""

    def ask_again(self) -> None:
        """The key is to be checked: by this, or if this has begun, by it once more."""
        self.again = self.waiting is not None

    def joined(self, operation: Operation) -> None:
        """`operation` watches the key by now, and was not tried."""
        if self.waiting is None:
            return
        if self.walked is not None:
            here = self.walked.standing()
            first = here.first or here
            places = each_of(operation._op_places)
            if any(type(place) is Chunk and place.first is first and place is not here for place in places):
                return  # the walk will come there
        self.late.append(operation)

    def advance(self, portion: int) -> int:
        """Tries up to `portion` operations, and stands in line again if there are more. Returns what that took of it."""
        engine, key = self.engine, self.key
        room, teller = engine.room, engine.teller
        tries = 0 if teller is None else teller.tries
        done, waiting = 1, self.waiting or _NO_ONE
        # What a try claims is finished before the next one, unless a backlog of others has its own turns.
        is_clear = not room.claimed
        try:
            while done <= portion:
                left = length_hint(waiting)
                if not left:
                    waiting = self._next()
                    left = length_hint(waiting)
                    if not left:
                        break
                for operation in islice(waiting, portion + 1 - done):
                    if operation._op_state is PENDING:
                        room.current = operation
                        try_once(engine, operation, key)
                        if operation._op_state is COMPLETED:  # type: ignore[comparison-overlap]  # by now
                            self.completed += 1
                        if is_clear and room.claimed:
                            break
                done += left - length_hint(waiting)
                if is_clear and room.claimed:
                    done += room.conclude_claimed(portion - done)
        finally:
            room.current = None
            if teller is not None:
                self.tried += teller.tries - tries
            if length_hint(waiting) or self.late or (self.walked is not None and self.walked.standing().after is not None):
                self.line.append(self)
                room.unsettled = True
            else:
                self._end()
        return done

    def _next(self) -> Iterator[Operation]:
        """Those to be tried next: those that came late to this chunk, then those of the next one; empty if there are none."""
        found: list[Operation] = []
        if self.waiting is None:
            found = self._begin()
        elif self.late:
            found, self.late = self.late, found
        elif self.walked is not None and (chunk := self.walked.standing().after) is not None:
            self.walked, found = chunk, list(chunk)
        self.waiting = iter(found)
        return self.waiting

    def _begin(self) -> list[Operation]:
        first = self.engine.by_key.get(self.key)
        if type(first) is not Chunk:
            return [] if first is None else [first]
        self.walked = first
        if not first and first.after is not None:
            self.walked = first.after
        return list(self.walked)

    def _end(self) -> None:
        engine = self.engine
        tried, completed = self.tried, self.completed - self.before
        if self.again:
            self.begin_anew()
            self.line.append(self)
            engine.room.unsettled = True
        else:
            self.is_over = True
            engine.forget_check(self)
        if tried:
            engine.teller.checked(self.key, tried, completed)
