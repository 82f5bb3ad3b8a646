"""The purgatory against a naive model: a list of operations, scanned from the front for every
request.
Both get the same calls and must agree: on the order of hooks, the return value of each call, the
state and deadline of each operation, and every count. Hooks nest: an operation may carry scripts,
which run once, in its next try, its `on_complete` and its `on_expiration`, and may do anything that
a hook may.
The order of expirations due at the same time is not promised: the model copies the purgatory's
order.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from helpers import THOROUGHNESS
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from invariants import check

from purgatory import DelayedOperation, OperationState, Purgatory
from purgatory._core.wheel import TickClock
from purgatory.testing import VirtualTimeLoop

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState

KEYS = "abcd"
TIMEOUTS = [None, -1.0, 0.0, 0.25, 1.0, 1.6, 3.0, 19.5, 63.0, 64.3, 410.0, 5000.5]
"""In ticks."""

Script = list[tuple[Any, ...]]


class Refusal(Exception):
    """A script's exception, which leaves its hook."""


def make_scripts(seed: int) -> dict[str, Script]:
    """Most seeds use operations without scripts."""
    random = Random(seed)
    if random.random() < 0.6:
        return {}

    def action() -> tuple[Any, ...]:
        match random.randrange(9):
            case 0 | 1:
                return "check", random.choice(KEYS)
            case 2 | 3:
                return "force", random.randrange(100)
            case 4:
                return "cancel", random.randrange(100)
            case 5:
                return "cancel_key", random.choice(KEYS)
            case 6:
                return "satisfy", random.randrange(100)
            case 7:
                return "watch", random.choice(TIMEOUTS), random.choice(KEYS), random.random() < 0.3
            case _:
                return ("refuse",)

    return {
        hook: [action() for _ in range(random.randrange(3))]
        for hook in ("try", "complete", "expire")
    }


def carry_out(world: Any, script: Script) -> None:
    """One interface for the model and the purgatory."""
    for name, *arguments in script:
        if name == "refuse":
            raise Refusal
        getattr(world, name)(*arguments)


class World:
    """Code shared by the two sides."""

    def __init__(self, tick: float) -> None:
        self.tick = tick
        self.log: list[tuple[int, str, float]] = []
        self.operations: list[Any] = []

    def one(self, number: int) -> Any:
        return self.operations[number % len(self.operations)]

    def satisfy(self, number: int) -> None:
        self.one(number).ready = True


# The purgatory


class Operation(DelayedOperation[int]):
    def __init__(
        self, world: "Real", timeout: float | None, ready: bool, scripts: dict[str, Script]
    ) -> None:
        super().__init__(timeout)
        self.world, self.ready, self.scripts = world, ready, dict(scripts)
        self.number = len(world.operations)
        world.operations.append(self)

    def hook(self, name: str) -> None:
        now = self.world.loop.time()
        if self.state is EXPIRED:
            assert self.deadline is not None and now >= self.deadline, "early"
        self.world.log.append((self.number, name, now))
        carry_out(self.world, self.scripts.pop(name, []))

    def _timer_expired(self) -> Any:
        self.world.visits.append(self.number)
        return super()._timer_expired()

    def try_complete(self) -> bool:
        self.hook("try")
        return self.ready and self.force_complete()

    def on_complete(self) -> int:
        self.hook("complete")
        return self.number

    def on_expiration(self) -> None:
        self.hook("expire")


class Real(World):
    def __init__(self, start: float, tick: float, wheel_size: int) -> None:
        super().__init__(tick)
        self.loop = VirtualTimeLoop(start=start)
        self.loop.set_exception_handler(lambda *_: None)  # ignores refusals without an awaiter
        self.purgatory: Purgatory[Operation] = Purgatory(tick=tick, wheel_size=wheel_size)
        self.visits: list[int] = []
        """Operations whose deadline had passed, in the order in which the wheel returned them."""

    def run(self, action: Callable[[], Any], sleep: float = 0.0) -> Any:
        async def main() -> Any:
            result = action()
            await asyncio.sleep(sleep)
            for _ in range(6):
                await asyncio.sleep(0)
            return result

        return self.loop.run_until_complete(main())

    def watch(
        self,
        timeout: float | None,
        keys: str,
        ready: bool = False,
        scripts: dict[str, Script] | None = None,
    ) -> bool:
        operation = Operation(self, timeout and timeout * self.tick, ready, scripts or {})
        return self.purgatory.try_complete_else_watch(operation, list(keys))

    def check(self, key: str) -> int:
        return self.purgatory.check_and_complete(key)

    def force(self, number: int) -> bool:
        return self.one(number).force_complete()

    def cancel(self, number: int) -> bool:
        return self.one(number).cancel()

    def cancel_key(self, key: str) -> list[int]:
        return [operation.number for operation in self.purgatory.cancel_for_key(key)]

    def signal(self, keys: str) -> None:
        for key in keys:
            self.purgatory.check_and_complete_threadsafe(key)

    def counts(self) -> tuple[int, ...]:
        found = self.purgatory.statistics()
        waiting = (found.pending, found.watched, found.keys)
        return (*waiting, found.completed, found.expired, found.cancelled, found.missed_triggers)


# The model


class Modelled:
    def __init__(
        self, number: int, timeout: float | None, keys: str, ready: bool, scripts: dict[str, Script]
    ) -> None:
        self.number, self.timeout, self.keys, self.ready, self.scripts = (
            number,
            timeout,
            keys,
            ready,
            dict(scripts),
        )
        self.state = PENDING
        self.finished = False
        self.deadline: float | None = None
        self.fire_tick: int | None = None


class Model(World):
    def __init__(self, start: float, tick: float) -> None:
        super().__init__(tick)
        self.now = start
        self.clock = TickClock(tick)
        self.watching: list[Modelled] = []
        """Operations in the order in which their waits began: a first try may watch other
        operations before its own."""
        self.current: Modelled | None = None
        self.queue: deque[Modelled | str] = deque()
        """Operations that are to be finished, and keys that are to be checked."""
        self.under_check: dict[str, list[Modelled]] = {}
        """Operations that each check in progress has yet to try."""
        self.again: set[str] = set()
        self.crowded: set[str] = set()
        """Keys that two operations have watched at the same time, until all operations have left.
        """
        self.completed = self.expired = self.cancelled = self.missed = 0

    def waiting(self, key: str | None = None) -> list[Modelled]:
        found = [one for one in self.watching if one.state is PENDING]
        return [one for one in found if key is None or key in one.keys]

    def hook(self, one: Modelled, name: str) -> bool:
        """Runs a hook; returns whether it returned."""
        outer, self.current = self.current, one
        self.log.append((one.number, name, self.now))
        try:
            carry_out(self, one.scripts.pop(name, []))
        except Refusal:
            return False
        finally:
            self.current = outer
        return True

    def attempt(self, one: Modelled) -> None:
        if not self.hook(one, "try"):
            self.cancel(one.number)
        elif one.ready and one.state is PENDING:
            one.state = COMPLETED
            self.completed += 1

    def finish(self, one: Modelled) -> None:
        if not one.finished:
            one.finished = True
            self.hook(one, "complete")
            if one.state is EXPIRED:
                self.hook(one, "expire")

    def run_queue(self) -> int:
        completed = 0
        while self.queue:
            work = self.queue.popleft()
            if isinstance(work, Modelled):
                self.finish(work)
            else:
                completed += self.continue_check(work)
        return completed

    def continue_check(self, key: str) -> int:
        """Tries operations until one of them has caused work."""
        completed, queued = 0, len(self.queue)
        yet = self.under_check.setdefault(key, self.waiting(key))
        while yet and len(self.queue) == queued:
            one = yet.pop(0)
            if one.state is PENDING:
                completed += self.try_now(one)
        if yet:
            self.queue.append(key)
            return completed
        del self.under_check[key]
        if key in self.again:
            self.again.discard(key)
            self.queue.append(key)
        return completed

    def try_now(self, one: Modelled) -> bool:
        self.attempt(one)
        if one.state is COMPLETED:
            self.finish(one)
        return one.state is COMPLETED

    def checks_ahead(self, one: Modelled) -> bool:
        others = [
            key
            for key in one.keys
            if key in self.under_check or (key in self.queue and self.waiting(key))
        ]
        return bool(others) and (one.timeout is None or one.timeout > 0.0)

    def watch(
        self,
        timeout: float | None,
        keys: str,
        ready: bool = False,
        scripts: dict[str, Script] | None = None,
    ) -> bool:
        one = Modelled(
            len(self.operations), timeout and timeout * self.tick, keys, ready, scripts or {}
        )
        self.operations.append(one)
        is_late = self.checks_ahead(one)
        if not is_late:
            self.attempt(one)
        if one.state is PENDING:
            self.wait(one)
        if is_late:
            for key in set(keys) & set(self.under_check):
                self.under_check[key].append(one)
        if one.state in (COMPLETED, EXPIRED):
            self.queue.append(one) if self.current else self.finish(one)
        if self.current is None:
            self.run_queue()
        return one.state is not PENDING

    def wait(self, one: Modelled) -> None:
        for key in set(one.keys):
            others = self.waiting(key)
            self.crowded.discard(key) if not others else self.crowded.add(key)
        self.watching.append(one)
        if one.timeout is not None and one.timeout <= 0.0:
            one.state = EXPIRED
            self.expired += 1
        elif one.timeout is not None:
            one.deadline = self.now + one.timeout
            one.fire_tick = self.clock.due_tick(one.deadline)
            one.fire_tick += self.clock.instant(one.fire_tick) < one.deadline

    def check(self, key: str) -> int:
        if self.current is None:
            if not self.waiting(key):
                return 0
            if key in self.crowded:
                return self.continue_check(key) + self.run_queue()
            return self.try_now(self.waiting(key)[0]) + self.run_queue()
        self.check_later(key)
        return 0

    def check_later(self, key: str) -> None:
        if key in self.under_check:
            self.again.add(key)
        elif key not in self.queue:
            self.queue.append(key)

    def force(self, number: int) -> bool:
        one = self.one(number)
        if one.state is not PENDING:
            return False
        one.state = COMPLETED
        self.completed += 1
        if self.current is None:
            self.finish(one)
            self.run_queue()
        elif self.current is not one:
            self.queue.append(one)
        return True

    def cancel(self, number: int) -> bool:
        one = self.one(number)
        if one.state is not PENDING:
            return False
        one.state = CANCELLED
        self.cancelled += 1
        return True

    def cancel_key(self, key: str) -> list[int]:
        return [one.number for one in self.waiting(key) if self.cancel(one.number)]

    def signal(self, keys: str) -> None:
        for key in dict.fromkeys(keys):
            if self.waiting(key):
                self.check_later(key)
        self.run_queue()

    def advance(self, until: float, visits: list[int], stalled: bool) -> None:
        """`visits` come from the purgatory: after a stall it may find a deadline passed before its
        tick."""
        place = {number: at for at, number in enumerate(visits)}
        if stalled:
            self.now = until
            early = [
                one
                for one in self.waiting()
                if one.number in place and one.deadline and one.deadline <= until
            ]
            self.expire_all(list(dict.fromkeys([*self.due(until), *early])), place)
        while due := self.due(until):
            first_tick = min(one.fire_tick for one in due)
            self.now = self.clock.instant(first_tick)
            self.expire_all([one for one in due if one.fire_tick == first_tick], place)
        self.now = until

    def due(self, until: float) -> list[Any]:
        return [
            one
            for one in self.waiting()
            if one.fire_tick and self.clock.instant(one.fire_tick) <= until
        ]

    def expire_all(self, at_once: list[Modelled], place: dict[int, int]) -> None:
        for one in sorted(at_once, key=lambda one: place.get(one.number, len(place))):
            if one.state is PENDING:
                self.expire(one)
        self.run_queue()

    def expire(self, one: Modelled) -> None:
        is_asked_for = any(key in self.queue or key in self.under_check for key in one.keys)
        self.attempt(one)
        if one.state is COMPLETED:
            self.missed += not is_asked_for
        elif one.state is PENDING:
            one.state = EXPIRED
            self.expired += 1
        if one.state is not CANCELLED:
            self.finish(one)

    def counts(self) -> tuple[int, ...]:
        waiting = self.waiting()
        keys = [key for one in waiting for key in set(one.keys)]
        return (
            len(waiting),
            len(keys),
            len(set(keys)),
            self.completed,
            self.expired,
            self.cancelled,
            self.missed,
        )


# Both sides


numbers = st.integers(0, 99)
some_key = st.sampled_from(KEYS)
some_keys = st.sampled_from(["a", "b", "c", "d", "ab", "bc", "da", "acd", "aba", "dd"])


class Comparison(RuleBasedStateMachine):
    @initialize(
        start=st.sampled_from([0.0, 2e7, 1e9]),
        tick=st.sampled_from([0.001, 0.01, 0.25]),
        wheel_size=st.sampled_from([2, 20, 64]),
    )
    def begin(self, start: float, tick: float, wheel_size: int) -> None:
        self.real, self.model = Real(start, tick, wheel_size), Model(start, tick)

    def both(self, name: str, *arguments: Any) -> None:
        actual = self.real.run(lambda: getattr(self.real, name)(*arguments))
        assert actual == getattr(self.model, name)(*arguments)

    @rule(
        timeout=st.sampled_from(TIMEOUTS),
        keys=some_keys,
        ready=st.booleans(),
        seed=st.integers(0, 9999),
    )
    def watch(self, timeout: float | None, keys: str, ready: bool, seed: int) -> None:
        # Half of the ready operations become ready only after their first try.
        self.both("watch", timeout, keys, ready and seed % 2 == 0, make_scripts(seed))
        if ready:
            self.both("satisfy", len(self.model.operations) - 1)

    @rule(timeouts=st.lists(st.sampled_from(TIMEOUTS[3:]), min_size=2, max_size=5), keys=some_keys)
    def watch_some(self, timeouts: list[float], keys: str) -> None:
        for timeout in timeouts:
            self.both("watch", timeout, keys)

    @rule(key=some_key)
    def check(self, key: str) -> None:
        self.both("check", key)

    @rule(key=some_key)
    def cancel_key(self, key: str) -> None:
        self.both("cancel_key", key)

    @rule(keys=st.text(KEYS, min_size=1, max_size=4))
    def signal(self, keys: str) -> None:
        self.both("signal", keys)

    @precondition(lambda self: self.model.operations)
    @rule(name=st.sampled_from(["satisfy", "force", "cancel"]), number=numbers)
    def one(self, name: str, number: int) -> None:
        self.both(name, number)

    def move(self, seconds: float) -> None:
        until = self.real.loop.time() + seconds
        self.real.visits.clear()
        self.real.run(lambda: None, sleep=seconds)
        self.model.advance(until, self.real.visits, stalled=False)
        assert self.real.loop.time() == until

    @rule(ticks=st.sampled_from([0.3, 1.0, 1.7, 20.0, 64.0, 600.0, 6000.0]))
    def advance(self, ticks: float) -> None:
        self.move(ticks * self.real.tick)

    @precondition(lambda self: any(one.deadline for one in self.model.waiting()))
    @rule(off=st.sampled_from([-0.5, 0.0, 0.5, 1.0]))
    def advance_to_a_deadline(self, off: float) -> None:
        deadline = min(one.deadline for one in self.model.waiting() if one.deadline)
        self.move(max(0.0, deadline + off * self.real.tick - self.real.loop.time()))

    @precondition(lambda self: not any(one.scripts for one in self.model.waiting()))
    @rule(ticks=st.sampled_from([1.5, 30.0, 700.0]))
    def stall(self, ticks: float) -> None:
        until = self.real.loop.time() + ticks * self.real.tick
        self.real.visits.clear()
        self.real.run(lambda: self.real.loop._set_time(until))
        self.model.advance(until, self.real.visits, stalled=True)

    @invariant()
    def the_same_has_happened(self) -> None:
        if not hasattr(self, "real"):
            return
        real, model = self.real, self.model
        assert real.log == model.log
        real.log.clear()
        model.log.clear()
        assert real.counts() == model.counts()
        assert (real.purgatory.pending, real.purgatory.watched) == model.counts()[:2]
        assert [one.state for one in real.operations] == [one.state for one in model.operations]
        for actual, expected in zip(real.operations, model.operations, strict=True):
            assert expected.deadline is None or actual.deadline == expected.deadline
        check(real.purgatory)

    def teardown(self) -> None:
        if hasattr(self, "real"):
            pending = [one.number for one in self.model.waiting()]
            try:
                closed = self.real.loop.run_until_complete(self.real.purgatory.aclose())
                assert sorted(one.number for one in closed) == sorted(pending)
                assert self.real.purgatory.pending == self.real.purgatory.watched == 0
            finally:
                self.real.loop.close()


IN_FEW_HISTORIES = settings(
    max_examples=100,
    stateful_step_count=50,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class TestThePurgatoryDoesWhatANaiveListWouldDo(Comparison.TestCase):  # type: ignore[misc,name-defined]
    settings = IN_FEW_HISTORIES


@pytest.mark.slow
class TestThePurgatoryDoesWhatANaiveListWouldDoAtLength(Comparison.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(IN_FEW_HISTORIES, max_examples=200 * THOROUGHNESS)
