"""A check of a key: tries who watches it, in the order in which they came, a portion per turn of the loop.

    check_and_complete(key) in any hook     puts a check in line, also if nobody watches the key yet
    for a key that is in line already       stays where it is: one check serves all who asked before it began
    for a key whose check is in progress    it is checked once more when that has ended, however often that is asked for
    an operation that comes to such a key   is not tried at first, but at the end of the check: nobody barges in

The watch list is walked a chunk at a time and never copied, so the first turn costs a portion, whatever waits; who leaves is
not met any more, and who joins is met last.
"""

from collections import deque
from collections.abc import Hashable
from typing import Any, NoReturn, Protocol, final

from purgatory._dispatcher import Check, Dispatcher
from purgatory._observer import NOTHING, Among, Notes, Observer
from purgatory._operation import DelayedOperation
from purgatory._state import COMPLETED, PENDING
from purgatory._watchers import Chunk

Operation = DelayedOperation[Any]


class Trier(Protocol):
    """What a check needs of its purgatory."""

    room: Dispatcher
    by_key: dict[Hashable, Any]
    observer: Observer | None
    notes: Notes

    def refuse_true(self, operation: Operation) -> NoReturn: ...
    def try_failed(self, operation: Operation, error: BaseException) -> None: ...
    def conclude(self, operation: Operation, cause: Hashable = ...) -> None: ...
    def tell_checked(self, key: Hashable, tried: int, completed: int) -> None: ...
    def forget_check(self, check: "KeyCheck") -> None: ...


@final
class KeyCheck:
    """A check of a key: in line, in progress, or over.

    It walks the watch list a chunk at a time. Who joins the list meanwhile is met at its end.
    """

    __slots__ = ("again", "before", "completed", "engine", "is_over", "key", "late", "line", "tried", "waiting", "walked")

    def __init__(self, engine: Trier, key: Hashable, line: deque[Check]) -> None:
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
        self.waiting: list[Operation] | None = None
        """Who is yet to be tried of those that were seen so far, the next one last; `None` before it has begun."""
        self.walked: Chunk | None = None
        """The chunk that they are in."""
        self.late: list[Operation] = []
        """Who has joined where it has looked already."""
        self.tried = 0
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
            places = operation._op_places if type(operation._op_places) is tuple else (operation._op_places,)
            if any(type(place) is Chunk and place.first is first and place is not here for place in places):
                return  # the walk will come there
        self.late.append(operation)

    def advance(self, portion: int) -> int:
        """Tries up to `portion` operations, and stands in line again if there are more; what that cost of the portion."""
        engine = self.engine
        room = engine.room
        cause = NOTHING if engine.observer is None else Among(self.key)
        done, waiting = 1, self.waiting
        # What a try claims is concluded before the next one, unless a backlog of others has its own turns.
        is_clear = not room.claimed
        try:
            while done <= portion:
                if not waiting:
                    waiting = self._next()
                    if not waiting:
                        break
                operation = waiting.pop()
                done += 1
                state = operation._op_state
                if state is not PENDING:
                    continue
                self.tried += 1
                room.current = operation
                try:
                    if operation.try_complete() and operation._op_state is PENDING:
                        engine.refuse_true(operation)
                except BaseException as error:
                    engine.try_failed(operation, error)
                if operation._op_state is COMPLETED:
                    self.completed += 1
                    engine.conclude(operation, cause)
                else:
                    if engine.observer is not None:
                        engine.notes.retried(operation)
                    if operation._op_state is not PENDING:
                        engine.conclude(operation)
                if is_clear and room.claimed:
                    done += room.conclude_claimed(portion - done)
        finally:
            room.current = None
            if waiting or self.late or (self.walked is not None and self.walked.standing().after is not None):
                self.line.append(self)
                room.unsettled = True
            else:
                self._end()
        return done

    def _next(self) -> list[Operation]:
        """Who is to be tried next: who came late to this chunk, then those of the next one; none if there is nobody."""
        found: list[Operation] = []
        if self.waiting is None:
            found = self._begin()
        elif self.late:
            found, self.late = self.late, found
        elif self.walked is not None and (chunk := self.walked.standing().after) is not None:
            self.walked, found = chunk, list(chunk)
        found.reverse()
        self.waiting = found
        return found

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
        if tried and engine.observer is not None:
            engine.tell_checked(self.key, tried, completed)
