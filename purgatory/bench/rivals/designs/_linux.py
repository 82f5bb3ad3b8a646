"""Linux's timer wheel: levels of 64 slots, each level 8 times coarser than the one below, and nothing ever cascades.

A request goes into the finest level that reaches its deadline, into the slot that ends at the deadline or after it, and stays
there. With a tick of 1 ms a deadline is met exactly up to 63 ms; beyond that a request is up to 8 ms late, and 64 ms from half
a second on. One timer of the loop is armed, for the first slot that is not empty.

Source: Linux, `kernel/time/timer.c`; T. Gleixner, "timers: Switch to a non-cascading wheel" (2016). An integer for each
level has a bit for each slot that is not empty, which helps to find the next one.
"""

from collections.abc import Hashable, Sequence
from math import ceil

from purgatory.bench.rivals.designs._interface import Request
from purgatory.bench.rivals.designs._watch_sets import OnWatchSets

LEVELS = 9
SLOTS = 64
COARSER_BITS = 3
MASK = SLOTS - 1


class Timed(Request):
    """A request in a slot."""

    __slots__ = ("design", "slot")

    design: "LinuxWheel"
    slot: "dict[Timed, None] | None"

    def force_complete(self) -> bool:
        if self.done:
            return False
        self.done = True
        if self.slot is not None:
            del self.slot[self]
            self.slot = None
        self.design.watchers.remove(self, self.keys)
        self.on_complete()
        return True


class LinuxWheel(OnWatchSets):
    """The levels, and one alarm."""

    def __init__(self) -> None:
        super().__init__()
        self._levels: list[list[dict[Timed, None]]] = [[{} for _ in range(SLOTS)] for _ in range(LEVELS)]
        self._used = [0] * LEVELS
        """For each level the bits of the slots that are not empty, or were not when we last looked."""
        self._clock = int(self._time() * 1000.0)
        """Everything up to this tick is done."""
        self._alarm_tick = -1
        self.new_request = Timed
        self.complete = Timed.force_complete

    def watch(self, request: Timed, keys: Sequence[Hashable]) -> bool:
        if request.world.now_ms >= request.completes_at_ms:  # try_complete, before there is anything to be taken out of
            request.done = True
            request.on_complete()
            return True
        request.design = self
        request.keys = keys
        now = self._time()
        if not self.watchers.pending and self._alarm is None:
            self._clock = int(now * 1000.0)
        self.watchers.add(request, keys)
        request.deadline = deadline = now + request.timeout
        due_tick = max(ceil(deadline * 1000.0 - 1e-3), self._clock + 1)
        level, ahead = 0, due_tick - self._clock
        while level < LEVELS - 1 and ahead >= MASK << COARSER_BITS * level:
            level += 1
        shift = COARSER_BITS * level
        number = (due_tick + (1 << shift) - 1) >> shift
        slot = request.slot = self._levels[level][number & MASK]
        slot[request] = None
        self._used[level] |= 1 << (number & MASK)
        if self._alarm is None or number << shift < self._alarm_tick:
            self._set_alarm(number << shift)
        return False

    def _set_alarm(self, tick: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_tick = tick
        self._alarm = self._loop.call_at(tick / 1000.0, self._work)

    def _next_tick(self) -> int | None:
        """The tick at which the first slot that is not empty is due."""
        first = None
        for level, used in enumerate(self._used):
            if used:
                shift = COARSER_BITS * level
                start = (self._clock >> shift) + 1
                turned = (used >> (start & MASK) | used << SLOTS - (start & MASK)) & (1 << SLOTS) - 1
                tick = start + (turned & -turned).bit_length() - 1 << shift
                if first is None or tick < first:
                    first = tick
        return first

    def _work(self) -> None:
        self.wake_ups += 1
        self._alarm = None
        now_tick = int(self._time() * 1000.0 + 1e-3)
        while (tick := self._next_tick()) is not None and tick <= now_tick:
            self._clock = tick
            for level in range(LEVELS):
                shift = COARSER_BITS * level
                if tick & (1 << shift) - 1:
                    break
                number = tick >> shift & MASK
                if self._used[level] >> number & 1:
                    self._used[level] &= ~(1 << number)
                    self._expire(self._levels[level][number])
        self._clock = max(self._clock, now_tick)
        if tick is not None:
            self._set_alarm(tick)

    def _expire(self, slot: dict[Timed, None]) -> None:
        for request in list(slot):
            if request.force_complete():
                request.on_expiration()
