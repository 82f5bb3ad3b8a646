"""Which of a hundred thousand connections have fallen silent, at the price of a field write for each sign of life.

Each id has one entry in a timing wheel. A sign of life writes the entry's new deadline into it and does nothing else: no
bucket changes, no timer of the loop moves. When the bucket that holds the entry is due, the wheel looks at the deadline,
and either it has come, or the entry goes into the bucket of the deadline that it has by now. With a timeout of 30 s:

    touch at  0    waits in the bucket of 30
    touch at 12    deadline 42, still in the bucket of 30
    touch at 29    deadline 59, still in the bucket of 30
           at 30   looked at, put into the bucket of 59
           at 59   silent for 30 s: on_idle

So an id is looked at about once in a timeout, however often it was touched. A scan looks at every id each time; a timer
for each id is made and cancelled at each touch.

By default there are 8000 ticks in a timeout, none shorter than 4 ms. Then a tick finds few ids to look at beside those
that are idle indeed, so it is cheap; the loop is woken 250 times a second at most, however many ids are tracked, and less
often where few are.

Compare netty's `IdleStateHandler`, whose timer, one for each connection, sets itself anew if something came meanwhile.
"""

from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Hashable, Iterator, Sequence
from math import ceil
from threading import get_ident
from typing import Final, Generic, Self, TypeVar, cast, final

from purgatory._clock import TickClock
from purgatory._ears import Ears
from purgatory._errors import PurgatoryClosed
from purgatory._home import NO_HOME
from purgatory._observer import Cause, Observer, observers_of
from purgatory._slots import FULL, Bucket, Entry
from purgatory._state import EXPIRED
from purgatory._timer import LoopWheel

Id = TypeVar("Id", bound=Hashable)

TICKS_PER_TIMEOUT: Final = 8000
SHORTEST_TICK: Final = 0.004
LONGEST_TICK: Final = 1.0

MAX_WHEEL_SIZE: Final = 8192
"""A level that reaches beyond the timeout spares entries the cascade, but a bucket for each of few ids costs the loop a
timer for each; with this many they share wider buckets."""


@final
class _Tracked(Entry, Generic[Id]):
    """An id that waits for falling idle; its deadline is `_wheel_when`."""

    __slots__ = ("id",)

    id: Id


@final
class _IdleWheel(LoopWheel, Generic[Id]):
    """A wheel whose entries are all of one kind, so that it deals with them itself, without a call for each."""

    __slots__ = ("entries", "on_idle", "tell")

    def __init__(self, tick: float, wheel_size: int, on_idle: Callable[[Id], object]) -> None:
        super().__init__(tick, wheel_size)
        self.on_idle = on_idle
        self.tell: Callable[[_Tracked[Id], float], object] | None = None
        """Tells observers of an id that has fallen idle, if there are any."""
        self.entries: dict[Id, _Tracked[Id]] = {}

    def _expire(self, batch: list[Entry], now: float) -> None:
        """Puts back what was touched meanwhile, and tells `on_idle` of the rest."""
        bucket = cast(Bucket, self._current)
        # One pass to look, before anything is done: memory that is far away is fetched for several ids at once.
        touched = [entry for entry in batch if entry._wheel_when > now and entry._wheel_bucket is bucket]
        if touched:
            self._put_all_back(touched, bucket)
        if len(touched) < len(batch):
            self._tell(cast(list[_Tracked[Id]], batch), bucket, now)

    def _put_all_back(self, touched: list[Entry], bucket: Bucket) -> None:
        """As `put_back`, but any bucket of its tick will do: in what order ids of one tick fall idle does not matter."""
        rate, slot_of, next_tick = self.rate, self.levels[0].get, self.tick_now + 1
        for entry in touched:
            due_tick = ceil(entry._wheel_when * rate)
            slot = slot_of(due_tick)
            if due_tick < next_tick or not slot or not (buckets := slot.added) or len(target := buckets[-1]) >= FULL:
                self.put_back(entry)
            else:
                # `Bucket.hand_over`, written out.
                del bucket[entry]
                entry._wheel_bucket = target
                target[entry] = None

    def _tell(self, batch: list[_Tracked[Id]], bucket: Bucket, now: float) -> None:
        """Calls `on_idle` for what is left of `batch`."""
        entries, on_idle = self.entries, self.on_idle
        for entry in batch:
            if entry._wheel_bucket is not bucket:
                continue
            if entry._wheel_when > now:  # touched by `on_idle` of one before it
                self.put_back(entry)
                continue
            del bucket[entry]
            entry._wheel_bucket = None
            id_ = entry.id
            try:
                del entries[id_]
            except BaseException as error:
                message = f"cannot find a {type(id_).__name__} again that was tracked: its hash, or what it equals, has changed"
                self.loop.call_exception_handler({"message": message, "exception": error})
            try:
                on_idle(id_)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                message = f"exception in on_idle({id_!r}) of an idle tracker"
                self.loop.call_exception_handler({"message": message, "exception": error})
            if self.tell is not None:
                self.tell(entry, self.time())


@final
class IdleTracker(Generic[Id]):
    """Calls `on_idle(id)` for each id that has not been touched for `timeout` seconds.

    `on_idle` is called once, from the loop and in an empty context, at or after the timeout since the last touch: never
    early by the loop's clock, late by at most one tick beyond what the loop itself is held up. The id is not tracked any
    more by then, and touching it again, also in `on_idle` itself, starts anew. Many ids that fall idle at once are told in
    portions of 512 per turn of the loop, tick by tick, those of one tick in no particular order. An exception of `on_idle`
    goes to the loop's exception handler and touches no other id.

    Bound to the running event loop at the first touch. The loop has one timer for each tick in which some id is to be
    looked at, and none when nothing is tracked.

        tracker = IdleTracker(30, lambda connection: connection.abort())
        tracker.touch(connection)       # connected, and at each packet
        tracker.remove(connection)      # closed

    Args:
        timeout: seconds of silence after which an id is idle, positive; `inf` means never.
        on_idle: a plain function; what it returns is ignored.
        tick: the grain of time in seconds, positive and finite; by default 1/8000 of the timeout, but not less than 4 ms
            and not more than 1 s.
        name: for observers.
        observer: is told of each id that has fallen idle, as of an operation of the kind "id" that has expired, begun at the
            last sign of life; or a sequence of those who are. Starts and checks there are none.

    Raises:
        ValueError, TypeError: an argument is out of its bounds or of another type.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_ears",
        "_entries",
        "_home",
        "_name",
        "_time",
        "_timeout",
        "_wheel",
    )

    def __init__(
        self,
        timeout: float,
        on_idle: Callable[[Id], object],
        *,
        tick: float | None = None,
        name: str = "idle",
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        if not timeout > 0.0:
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
        if tick is None:
            tick = max(SHORTEST_TICK, min(timeout / TICKS_PER_TIMEOUT, LONGEST_TICK))
        ticks_ahead = timeout * TickClock(tick).rate
        wheel_size = MAX_WHEEL_SIZE if ticks_ahead > MAX_WHEEL_SIZE else ceil(ticks_ahead) + 2
        self._wheel = wheel = _IdleWheel(tick, wheel_size, on_idle)
        self._timeout = float(timeout)
        self._entries = wheel.entries
        self._closed = False
        self._name = name
        observers = observers_of(observer)
        if observers:
            self._ears = Ears(observers, self._report)
            wheel.tell = self._tell_idle
        self._home = wheel.home
        self._time = wheel.time

    def touch(self, id: Id) -> None:  # noqa: A002 - there is no better word for it
        """Tells that `id` is alive; an unknown id is tracked from now on.

        Cost: one look-up and one assignment, whatever is tracked, and nothing of the loop but its clock. An unknown id also
        costs an entry in the wheel, and a timer of the loop if it is the first of its tick.

        Raises:
            TypeError: `id` is not hashable.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
            PurgatoryClosed: the tracker is closed.
        """
        if get_ident() != self._home.thread_id and running_loop() is not self._home.stranger:
            self._bind(f"touch {id!r}")
        # Calling an attribute that holds a function is dear in CPython 3.11; calling a local is not.
        time = self._time
        try:
            self._entries[id]._wheel_when = time() + self._timeout
        except KeyError:
            self._track(id)

    def remove(self, id: Id) -> bool:  # noqa: A002
        """Stops tracking `id`; true if it was tracked. Cost: O(1).

        To remove what has fallen idle, or was never touched, is no error: whoever is told that a connection is closed need
        not know why.

        Raises:
            WrongLoop: called from another loop or thread than the tracker's.
        """
        if self._home is NO_HOME:
            return False
        if get_ident() != self._home.thread_id and running_loop() is not self._home.stranger:
            self._bind(f"remove {id!r}")
        entry = self._entries.pop(id, None)
        if entry is None:
            return False
        self._wheel.remove(entry)
        return True

    def close(self) -> None:
        """Forgets every id without calling `on_idle`, which is not called any more; idempotent. Cost: what is tracked.

        Raises:
            WrongLoop: called from another loop or thread than the tracker's, while that loop is open.
        """
        wheel = self._wheel
        if wheel.is_bound and not wheel.loop.is_closed():
            wheel.bind("close an idle tracker")
            for entry in self._entries.values():
                if entry._wheel_bucket is not None:  # else its id has changed, so that it could not be found any more
                    wheel.remove(entry)
        self._entries.clear()
        self._closed = True
        self._home = NO_HOME  # so that the next touch asks `_bind`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Id]:
        """What is tracked now, in the order of the first touches; to touch or remove ids meanwhile does not disturb it.

        Cost: a list of what is tracked.
        """
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: object) -> bool:  # noqa: A002
        return id in self._entries

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"tracked={len(self)}"
        return f"<IdleTracker timeout={self._timeout} tick={self._wheel.clock.tick} {state}>"

    def _bind(self, doing: str) -> None:
        """Binds the tracker to the running loop, or raises what forbids it."""
        if self._closed:
            raise PurgatoryClosed(f"cannot {doing}: the idle tracker is closed")
        wheel = self._wheel
        wheel.bind(doing, len(self._entries))
        self._home, self._time = wheel.home, wheel.time

    def _track(self, id: Id) -> None:  # noqa: A002
        entry: _Tracked[Id] = _Tracked()
        entry.id = id
        when = self._time() + self._timeout
        self._wheel.bucket_at(when).join(entry, when)
        self._entries[id] = entry

    def _tell_idle(self, entry: _Tracked[Id], now: float) -> None:
        """Tells observers of an id that has fallen idle."""
        last_seen = entry._wheel_when - self._timeout
        self._ears.tell_end(
            (
                self._name, "id", (entry.id,), last_seen, now, self._timeout, EXPIRED, Cause.DEADLINE, None, 1, False, None,
                id(entry),
            )
        )  # fmt: skip

    def _report(self, message: str, error: BaseException | None) -> None:
        self._wheel.loop.call_exception_handler({"message": f"{self._name}: {message}", "exception": error})

    def _check(self) -> None:
        """Asserts the whole invariant. For tests. Cost: what is tracked."""
        self._wheel._check()
        assert len(self._wheel) == len(self._entries)
        for id_, entry in self._entries.items():
            assert entry.id == id_ and entry._wheel_bucket is not None and entry in entry._wheel_bucket
