"""Netty's `HashedWheelTimer`: one wheel of 512 slots. Each request counts how many more rounds it has to wait.

As long as anything waits, the worker wakes up for every tick, which is 1 ms here. New requests lie in a queue until the next
tick puts them into their slots; cancelled ones lie in another queue until the next tick takes them out. Once in 512 ticks the
worker goes through a slot, and leaves the requests there that have rounds left.

Source: Netty, `io.netty.util.HashedWheelTimer`. Its default tick is 100 ms.
"""

from collections.abc import Hashable, Sequence
from math import ceil

from purgatory.bench.rivals.designs._interface import Request
from purgatory.bench.rivals.designs._watch_sets import OnWatchSets

SLOTS = 512
TICKS_PER_SECOND = 1000


class Timed(Request):
    """A request in the queue, or in a slot."""

    __slots__ = ("design", "rounds", "slot")

    design: "NettyWheel"
    rounds: int
    slot: "dict[Timed, None] | None"

    def force_complete(self) -> bool:
        if self.done:
            return False
        self.done = True
        design = self.design
        if self.slot is not None:
            design.cancelled.append(self)
        design.watchers.remove(self, self.keys)
        self.on_complete()
        return True


class NettyWheel(OnWatchSets):
    """The wheel and its worker."""

    def __init__(self) -> None:
        super().__init__()
        self._start = self._time()
        self._slots: list[dict[Timed, None]] = [{} for _ in range(SLOTS)]
        self._queue: list[Timed] = []
        self.cancelled: list[Timed] = []
        self._tick = 0
        """The next tick to work on."""
        self.new_request = Timed
        self.complete = Timed.force_complete

    def watch(self, request: Timed, keys: Sequence[Hashable]) -> bool:
        if request.world.now_ms >= request.completes_at_ms:  # try_complete, before there is anything to be taken out of
            request.done = True
            request.on_complete()
            return True
        request.design = self
        request.keys = keys
        request.slot = None
        self.watchers.add(request, keys)
        request.deadline = self._time() + request.timeout
        self._queue.append(request)
        if self._alarm is None:
            self._tick = int((self._time() - self._start) * TICKS_PER_SECOND)
            self._set_alarm()
        return False

    def _set_alarm(self) -> None:
        self._alarm = self._loop.call_at(self._start + (self._tick + 1) / TICKS_PER_SECOND, self._work)

    def _work(self) -> None:
        self.wake_ups += 1
        now_tick = int((self._time() - self._start) * TICKS_PER_SECOND + 1e-3)
        while self._tick < now_tick:
            cancelled, self.cancelled = self.cancelled, []
            for request in cancelled:
                if request.slot is not None:
                    del request.slot[request]
                    request.slot = None
            queue, self._queue = self._queue, []
            for request in queue:
                if not request.done:
                    self._put(request)
            self._expire(self._slots[self._tick % SLOTS])
            self._tick += 1
        if self.watchers.pending:
            self._set_alarm()
        else:
            self._alarm = None

    def _put(self, request: Timed) -> None:
        # The worker comes to the slot of a tick when the tick is over.
        due_tick = max(ceil((request.deadline - self._start) * TICKS_PER_SECOND - 1e-3) - 1, self._tick)
        request.rounds = (due_tick - self._tick) // SLOTS
        slot = request.slot = self._slots[due_tick % SLOTS]
        slot[request] = None

    def _expire(self, slot: dict[Timed, None]) -> None:
        for request in list(slot):
            if request.rounds > 0:
                request.rounds -= 1
                continue
            del slot[request]
            request.slot = None
            if request.force_complete():
                request.on_expiration()
