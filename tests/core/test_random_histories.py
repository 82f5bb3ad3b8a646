"""Random histories: a seed decides the order of all that a purgatory does at once, and each step
checks the promises.
One seed is one history, so `play(seed)` repeats it. Chunks take 4 operations, an iteration of the
loop 8 steps, a level of the wheel 2 to 8 buckets, and far deadlines are approached in stages of ten
seconds, so that a few dozen operations meet every boundary. The clock jumps, also within hooks.
`test_model_purgatory` compares the order of everything with a model; this module checks after each
step:
    exactly once        each hook was called once for each state change, one hook at a time; every
                        await is answered
    nothing is lost     at rest, each waiter was tried after the last check of any of its keys
    order               a check tries a waiter after all earlier waiters of the key
    never early         and late by at most a tick beyond the time that the loop was blocked
    exact               `pending`, `watched` and the other statistics equal a count over all
                        operations
    nothing lingers     at the end: no operation, no bucket, no timer of the loop
"""

import asyncio
from collections import Counter
from contextlib import ExitStack
from functools import partial
from math import inf, isinf
from random import Random
from unittest.mock import patch

import pytest
from helpers import THOROUGHNESS
from invariants import check, deadlines, is_busy, is_empty, key_checks, registrations, small_bounds

from purgatory import (
    DelayedOperation,
    OperationCancelled,
    OperationState,
    OperationTimeout,
    Purgatory,
    PurgatoryClosed,
)
from purgatory.testing import VirtualTimeLoop

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState

KEYS = "abcdef"
OFTEN = "aaaaabbcdef"
TIMEOUTS = [None, None, inf, -1.0, 0.0, 0.25, 1.0, 1.6, 3.0, 7.0, 19.5, 64.3, 410.0, 5000.5, 1e6]
"""In ticks."""
JUMPS = [0.4, 2.0, 9.0, 65.0, 700.0, 30_000.0]
"""In ticks."""
STEPS = 40
MAX_OPERATIONS = 150


class Refusal(Exception):
    """The exception of hooks."""


class Lost(Exception):
    """The exception that ends the waits of a key."""


class CountingLoop(VirtualTimeLoop):  # the library never needs the number of an iteration
    iteration = 0

    def _run_once(self):
        self.iteration += 1
        super()._run_once()


class Waits(DelayedOperation):
    """Completes once the value of its first key has reached a goal. Its hooks run scripts, each
    once."""

    def __init__(self, world, timeout, keys, goal, scripts):
        super().__init__(timeout)
        self.world, self.keys, self.goal, self.scripts = world, keys, goal, scripts
        self.number = len(world.operations)
        self.calls = Counter()
        self.refused = set()
        self.is_satisfied = False
        self.tried_at = self.place = None
        world.operations.append(self)

    def holds(self):
        return self.is_satisfied or self.world.values[self.keys[0]] >= self.goal

    def hook(self, name):
        world = self.world
        world.event()
        world.expect(
            (name == "try" and not self.tried_at) or not world.inside, "a hook beside a hook"
        )
        world.expect(self not in world.inside, "entered twice")
        self.calls[name] += 1
        world.inside.append(self)
        try:
            for action in self.scripts.pop(name, ()):
                if isinstance(action, type):
                    self.refused.add(name)
                    raise action(self.number)
                action()
        finally:
            world.inside.pop()
            world.event()

    def try_complete(self):
        self.hook_at = self.world.event()
        if self.place is not None and self.world.key_in_check is not None:
            self.world.tried_by_check(self)
        try:
            self.hook("try")
        finally:
            self.tried_at = self.hook_at
        return self.state is PENDING and self.holds() and self.force_complete()

    def on_complete(self):
        self.world.expect(
            self.state in (COMPLETED, EXPIRED), f"on_complete of one that is {self.state}"
        )
        if self.state is EXPIRED:
            self.world.look_at_lateness(self.deadline)
        self.hook("complete")
        return self.number

    def on_expiration(self):
        self.world.expect(self.state is EXPIRED, f"on_expiration of one that is {self.state}")
        self.hook("expire")


class Observer:
    def __init__(self):
        self.ended = Counter()

    def operation_ended(self, ended):
        self.ended[ended.operation_id] += 1

    def key_checked(self, key, tried, completed):
        assert tried >= completed >= 0 and tried > 0


class World:
    def __init__(self, seed, loop):
        self.random = random = Random(seed)
        self.failures = []
        self.loop = loop
        self.tick = random.choice([0.001, 0.01, 0.25])
        self.observer = random.choice([None, Observer()])
        self.purgatory = Purgatory(
            tick=self.tick, wheel_size=random.randint(2, 8), observer=self.observer
        )
        self.values = dict.fromkeys(KEYS, 0)
        self.operations, self.made, self.newcomers, self.inside = [], [], [], []
        self.waiting = {key: [] for key in KEYS}
        """The operations that watch each key, in order of arrival."""
        self.places = 0
        self.events = 0
        self.asked_at = dict.fromkeys(KEYS, 0)
        self.key_in_check = None
        self.in_pass = {}
        """The operations that the current pass over each key has tried."""
        self.jumps = []
        self.tasks = []
        self.delivered, self.received, self.delivered_at = (
            Counter(),
            Counter(),
            dict.fromkeys(KEYS, 0),
        )
        self.async_waits = []
        self.receivers = []
        self.is_closing = self.cancelled_any = False
        self.exits = random.random() < 0.3
        self.reopening = None
        self.trace = []

    # -- records

    def expect(self, holds, message):
        """Like `assert`, also within a hook, where the library would catch the exception."""
        if not holds:
            self.failures.append(message)

    def event(self):
        """Numbers the events. Between two events at most one operation has begun to wait."""
        for operation in self.newcomers[:]:
            if operation.state is not PENDING:
                self.newcomers.remove(operation)
            elif keys := registrations(operation):
                self.newcomers.remove(operation)
                if isinstance(operation, Waits):
                    assert set(keys) == set(operation.keys)
                    self.places += 1
                    operation.place = self.places
                    for key in keys:
                        self.waiting[key].append(operation)
        self.events += 1
        return self.events

    def tried_by_check(self, operation):
        """Asserts that this pass has tried every earlier waiter of the key."""
        key = self.key_in_check
        tried = self.in_pass.setdefault(key, [])
        if tried and tried[-1].place >= operation.place:
            tried.clear()
        waiting = self.waiting[key] = [each for each in self.waiting[key] if each.state is PENDING]
        before = [
            each.number for each in waiting if each.place < operation.place and each not in tried
        ]
        self.expect(not before, f"{operation.number} was tried at {key}, and {before} were not")
        tried.append(operation)

    def look_at_lateness(self, deadline):
        if deadline is None:
            return
        now = self.loop.time()
        self.expect(now >= deadline, "early")
        limit = deadline + self.tick
        for begin, end in self.jumps:
            if begin <= limit:
                limit = max(limit, end)
        self.expect(now <= limit + 1e-9 * max(1.0, now), f"late by {now - limit}")

    # -- actions, also within hooks

    def key(self):
        return self.random.choice(OFTEN)

    def keys(self):
        return list(
            dict.fromkeys(self.random.choices(OFTEN, k=self.random.choice([1, 1, 1, 2, 3, 5])))
        )

    def timeout(self):
        timeout = self.random.choice(TIMEOUTS)
        return timeout and timeout * self.tick

    def set(self, key):
        self.values[key] += 1
        self.check(key)

    def check(self, key):
        self.asked_at[key] = self.event()
        self.purgatory.check_and_complete(key)

    def name(self, key):
        """Requests the check as another thread does."""
        self.asked_at[key] = self.event()
        self.purgatory.check_and_complete_threadsafe(key)

    def some(self):
        return (
            self.operations[self.random.randrange(len(self.operations))]
            if self.operations
            else None
        )

    def satisfy(self):
        """Satisfies an operation without a check of its key."""
        if (operation := self.some()) and operation.state is PENDING:
            operation.is_satisfied = True

    def force(self):
        if operation := self.some():
            before = operation.state
            assert operation.force_complete() is (before is PENDING)

    def cancel(self):
        if operation := self.some():
            before = operation.state
            assert operation.cancel() is (before is PENDING)

    def cancel_key(self, key):
        cancelled = self.purgatory.cancel_for_key(key)
        assert all(operation.state is CANCELLED for operation in cancelled)

    def fail(self, key):
        before = self.purgatory.pending
        assert before - self.purgatory.fail(key, Lost()) == self.purgatory.pending

    def deliver(self, key):
        value = len(self.delivered) + 1
        self.delivered_at[key] = at = self.event()
        self.delivered[value] = self.purgatory.deliver(key, value)
        if self.delivered[value]:
            self.asked_at[key] = max(self.asked_at[key], at)

    def watch(self, timeout, keys, scripts):
        if len(self.operations) >= MAX_OPERATIONS:
            return None
        operation = Waits(
            self, timeout, keys, self.values[keys[0]] + self.random.choice([0, 1, 1, 2, 5]), scripts
        )
        try:
            ended = self.purgatory.try_complete_else_watch(operation, keys)
        except PurgatoryClosed:
            assert self.is_closing and operation.cancel()
        else:
            assert ended is (operation.state is not PENDING)
        self.event()
        return operation

    def crowd(self, key, count):
        for _ in range(count):
            self.watch(self.timeout(), [key], {})

    def jump(self, ticks):
        begin = self.loop.time()
        self.loop._set_time(begin + ticks * self.tick)
        self.jumps.append((begin, self.loop.time()))

    def script(self):
        """A hook's script: functions, and 'refuse'."""
        random = self.random
        actions = [
            lambda: partial(self.set, self.key()),
            lambda: partial(self.check, self.key()),
            lambda: partial(self.name, self.key()),
            lambda: self.force,
            lambda: self.cancel,
            lambda: partial(self.cancel_key, self.key()),
            lambda: partial(self.deliver, self.key()),
            lambda: partial(self.watch, self.timeout(), self.keys(), {}),
            lambda: partial(self.watch, self.timeout(), self.keys(), self.scripts()),
            lambda: partial(self.crowd, self.key(), 5),
            lambda: partial(self.jump, random.choice(JUMPS)),
            lambda: partial(self.fail, self.key()),
            lambda: Refusal,
            lambda: SystemExit if self.exits else Refusal,
        ]
        return [random.choice(actions)() for _ in range(random.choice([0, 0, 1, 1, 2]))]

    def scripts(self):
        if self.random.random() < 0.6:
            return {}
        return {hook: self.script() for hook in ("try", "complete", "expire")}

    # -- tasks

    def start(self, coroutine):
        self.tasks.append(self.loop.create_task(coroutine))

    async def wait(self, timeout, keys, scripts):
        if len(self.operations) >= MAX_OPERATIONS:
            return
        operation = Waits(self, timeout, keys, self.values[keys[0]] + 1, scripts)
        try:
            result = await self.purgatory.wait(operation, keys)
        except asyncio.CancelledError:
            assert operation.state is not PENDING
            raise
        except PurgatoryClosed:
            assert self.is_closing and operation.cancel()
        except (Refusal, SystemExit):
            assert operation.refused or self.exits
        except (OperationCancelled, Lost):
            assert operation.state is CANCELLED
        else:
            assert result == operation.number and operation.state in (COMPLETED, EXPIRED)

    async def look(self, operation):
        try:
            assert await operation == operation.number and operation.state in (COMPLETED, EXPIRED)
        except (Refusal, SystemExit):
            assert operation.refused or self.exits
        except (OperationCancelled, Lost):
            assert operation.state is CANCELLED

    async def limited(self, wait, timeout, swallows=False):
        """Awaits; returns the result, or None after a timeout or a cancellation."""
        begin = self.loop.time()
        try:
            return await wait
        except OperationTimeout:
            assert timeout is not None and not isinf(timeout)
            if timeout > 0 and not swallows:
                self.look_at_lateness(begin + timeout)
        except (OperationCancelled, PurgatoryClosed, Lost):
            assert self.cancelled_any or self.is_closing
        return None

    async def wait_for(self, timeout, keys):
        goal, key = self.values[keys[0]] + self.random.randrange(3), keys[0]

        def holds():
            self.event()
            return self.values[key] >= goal and goal + 1

        value = await self.limited(self.purgatory.wait_for(holds, keys, timeout), timeout)
        assert value is None or (value == goal + 1 and self.values[key] >= goal)

    async def receive(self, timeout, key, state):
        state["begun_at"] = self.event()
        value = await self.limited(self.purgatory.receive(key, timeout), timeout)
        if value is not None:
            self.received[value] += 1

    def start_receiving(self, timeout, key):
        state = {"key": key}
        self.start(self.receive(timeout, key, state))
        state["task"] = self.tasks[-1]
        self.receivers.append(state)

    def start_expecting(self, timeout, key):
        async def reply():
            with self.purgatory.expect(key, timeout) as reply:
                await asyncio.sleep(self.random.choice([0.0, 0.0, 2 * self.tick]))
                return await reply

        async def receive():
            value = await self.limited(reply(), timeout, True)
            if value is not None:
                self.received[value] += 1

        self.start(receive())
        self.receivers.append({"key": key, "task": self.tasks[-1]})

    def reopen(self):
        async def reopening():
            await self.purgatory.aclose(self.random.choice([0.0, 20.0]) * self.tick)
            await self.purgatory.__aenter__()

        if self.reopening is None:
            self.is_closing = True  # from now on waits may be refused
            self.reopening = self.loop.create_task(reopening())

    def start_asynchronous(self, timeout, keys):
        wait = AsynchronousWait(self, timeout, keys)
        self.async_waits.append(wait)
        self.start(wait.main())
        wait.task = self.tasks[-1]

    # -- steps

    async def step(self):
        random = self.random
        self.cancelled_any = True
        actions = [
            (6, lambda: self.watch(self.timeout(), self.keys(), self.scripts())),
            (3, lambda: self.crowd(self.key(), random.randint(3, 20))),
            (4, lambda: self.start(self.wait(self.timeout(), self.keys(), self.scripts()))),
            (2, lambda: self.operations and self.start(self.look(self.some()))),
            (3, lambda: self.start(self.wait_for(self.timeout(), self.keys()))),
            (4, lambda: self.start_asynchronous(self.timeout(), self.keys())),
            (3, lambda: self.start_receiving(self.timeout(), self.key())),
            (2, lambda: self.deliver(self.key())),
            (2, lambda: self.receivers and self.deliver(random.choice(self.receivers)["key"])),
            (5, lambda: self.set(self.key())),
            (3, lambda: self.check(self.key())),
            (3, lambda: self.name(self.key())),
            (2, self.satisfy),
            (1, self.force),
            (1, self.cancel),
            (1, lambda: self.cancel_key(self.key())),
            (1, lambda: self.start(self.purgatory.acancel_for_key(self.key()))),
            (1, lambda: self.tasks and random.choice(self.tasks).cancel()),
            (2, lambda: self.start_expecting(self.timeout(), self.key())),
            (1, lambda: self.fail(self.key())),
            (0.2, lambda: self.purgatory.fail_all(Lost())),
            (0.3, self.reopen),
            (2, lambda: self.jump(random.choice(JUMPS))),
        ]
        [action] = random.choices(
            [action for _, action in actions], [weight for weight, _ in actions]
        )
        try:
            action()
        except SystemExit:
            assert self.exits
        match random.randrange(4):
            case 0:
                await asyncio.sleep(random.choice([0.3, 1.0, 1.7, 20.0, 64.0, 600.0]) * self.tick)
            case 1:
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
            case 2:
                await self.rest()
                self.check_at_rest()
        self.check_now()

    async def rest(self):
        """Runs the loop until only timers are left."""
        quiet = 0
        for _ in range(5000):
            await asyncio.sleep(0)
            quiet = 0 if is_busy(self.purgatory, self.loop) else quiet + 1
            if quiet == 6:
                return
        raise AssertionError("it does not come to rest")

    # -- invariants

    def check_now(self):
        self.event()
        assert self.failures == []
        purgatory = self.purgatory
        check(purgatory)
        given = [one for one in self.made if registrations(one) is not None]
        waiting = [one for one in given if one.state is PENDING]
        keys = [key for one in waiting for key in registrations(one)]
        found, states = purgatory.statistics(), Counter(one.state for one in given)
        assert (purgatory.pending, purgatory.watched) == (found.pending, found.watched)
        assert (found.pending, found.watched, found.keys) == (
            len(waiting),
            len(keys),
            len(set(keys)),
        )
        assert (found.completed, found.expired, found.cancelled) == (
            states[COMPLETED],
            states[EXPIRED],
            states[CANCELLED],
        )
        assert found.missed_triggers <= sum(
            one.is_satisfied and one.state is COMPLETED for one in self.operations
        )
        for task in self.tasks:
            if (
                task.done()
                and not task.cancelled()
                and not isinstance(task.exception(), SystemExit)
            ):
                task.result()
        self.trace.append((self.loop.time(), found))

    def check_at_rest(self):
        now = self.loop.time()
        self.in_pass.clear()
        for one in self.operations:
            if registrations(one) is None:
                continue
            done = one.state in (COMPLETED, EXPIRED)
            assert one.calls["complete"] == done, one.number
            expires = one.state is EXPIRED
            if not (
                expires and self.exits and "complete" in one.refused
            ):  # else it may be left out
                assert one.calls["expire"] == expires, one.number
            if one.state is PENDING:
                assert one.is_satisfied or not one.holds(), f"a wake-up of {one.number} was lost"
                assert one.tried_at > max(self.asked_at[key] for key in one.keys), (
                    f"{one.number} was not tried"
                )
                assert one.deadline is None or one.deadline + self.tick > now, (
                    f"{one.number} is overdue"
                )
        for wait in self.async_waits:
            if not wait.task.done() and wait.begun_at and not wait.is_running:
                assert wait.begun_at > max(self.asked_at[key] for key in wait.keys), (
                    "a run was lost"
                )
        for receiver in self.receivers:
            if not receiver["task"].done() and "begun_at" in receiver:
                assert receiver["begun_at"] > self.delivered_at[receiver["key"]], "a value was lost"
        if self.observer is not None:
            given = [
                one
                for one in self.made
                if registrations(one) is not None and one.state is not PENDING
            ]
            assert self.observer.ended == Counter(id(one) for one in given)

    async def end(self):
        """Closes a purgatory in one of the possible ways, and checks that nothing is left."""
        random = self.random
        self.is_closing = True
        if self.reopening is not None:
            await self.reopening
        match random.randrange(4):
            case 0:
                await self.purgatory.aclose()
            case 1:
                await self.purgatory.aclose(random.choice([0.5, 20.0, 6000.0]) * self.tick)
            case 2:
                closing_task = self.loop.create_task(self.purgatory.aclose(20 * self.tick))
                for _ in range(random.randrange(6)):
                    await asyncio.sleep(0)
                closing_task.cancel()
                await asyncio.wait([closing_task])
                await self.purgatory.aclose()
            case 3:
                await asyncio.gather(self.purgatory.aclose(3 * self.tick), self.purgatory.aclose())
        assert self.purgatory.pending == 0
        assert not any(wait.is_running for wait in self.async_waits), "a run goes on"
        await self.rest()
        self.check_now()
        self.check_at_rest()
        await asyncio.sleep(4 * self.tick)  # some expect a value and do something else first
        assert all(task.done() for task in self.tasks), "somebody was not answered"
        for value, count in self.delivered.items():
            assert self.received[value] <= count
        missing = sum(self.delivered.values()) - sum(self.received.values())
        assert 0 <= missing <= sum(each["task"].cancelled() for each in self.receivers)
        await asyncio.sleep(1.0)
        assert [handle for handle in self.loop._scheduled if not handle.cancelled()] == []
        assert (self.purgatory.watched, deadlines(self.purgatory)) == (0, 0)
        assert is_empty(self.purgatory)


class AsynchronousWait:
    """A task that waits for an asynchronous predicate."""

    def __init__(self, world, timeout, keys):
        random = world.random
        self.world, self.timeout, self.keys = world, timeout, keys
        self.goal = world.values[keys[0]] + random.randrange(3)
        self.takes = random.choice([None, 0.0, 0.0, 0.5 * world.tick, 3 * world.tick])
        self.swallows = random.random() < 0.2
        self.checks_itself = random.choice([0, 0, 2])
        self.is_plain_at_times = random.random() < 0.2
        self.is_running = self.is_asynchronous = False
        self.begun_at, self.ended_in = None, -1

    def predicate(self):
        world = self.world
        assert not self.is_running, "two runs at a time"
        assert world.loop.iteration > self.ended_in, "two runs in one iteration"
        self.begun_at = world.event()
        seen = world.values[self.keys[0]]
        if self.is_plain_at_times and world.random.random() < 0.5:
            if self.is_asynchronous:
                self.ended_in = world.loop.iteration
            return seen >= self.goal and seen + 1
        self.is_asynchronous = True
        return self.run(seen)

    async def run(self, seen):
        assert not self.is_running, "two runs at a time"
        self.is_running = True
        try:
            if self.checks_itself:
                self.checks_itself -= 1
                self.world.check(self.keys[-1])
            if self.takes is not None:
                await asyncio.sleep(self.takes)
        except asyncio.CancelledError:
            if not self.swallows:
                raise
            return False
        finally:
            self.is_running, self.ended_in = False, self.world.loop.iteration
        return seen >= self.goal and seen + 1

    async def main(self):
        world = self.world
        value = await world.limited(
            world.purgatory.wait_for(self.predicate, self.keys, self.timeout),
            self.timeout,
            self.swallows,
        )
        assert value is None or self.goal < value <= world.values[self.keys[0]] + 1


def play(seed):
    """Plays a history; returns its trace."""
    reports = []
    loop = CountingLoop(start=Random(seed).choice([0.0, 2e7, 1e9]))
    loop.set_exception_handler(lambda _, context: reports.append(context))
    with ExitStack() as stack:
        stack.enter_context(small_bounds())
        world = World(seed, loop)
        initialise = DelayedOperation.__init__

        def initialised(operation, *args, **options):
            initialise(operation, *args, **options)
            world.made.append(operation)
            world.newcomers.append(operation)

        def note(key):
            outer, world.key_in_check = world.key_in_check, key
            return outer

        stack.enter_context(patch.object(DelayedOperation, "__init__", initialised))
        stack.enter_context(key_checks(note))

        async def main():
            for _ in range(STEPS):
                await world.step()
            await world.end()

        async def sweep():
            """Cleans up, so that a failed history does not affect other tests."""
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            for operation in world.made:
                operation.cancel()

        def run(coroutine):
            """Runs it to its end, despite exits, which stop the loop."""
            task = loop.create_task(coroutine)
            while not task.done():
                try:
                    loop.run_until_complete(task)
                except SystemExit:
                    assert world.exits
                except (
                    RuntimeError
                ) as error:  # what an exit has left stops the loop when it is done
                    if "loop stopped" not in str(error):
                        raise
            return task.result()

        try:
            run(main())
        finally:
            run(sweep())
            run(asyncio.sleep(0.0))
            loop.close()
    expected = (Refusal, SystemExit) if world.exits else Refusal
    others = [report for report in reports if not isinstance(report.get("exception"), expected)]
    assert others == []
    return world.trace


def play_all(seeds):
    for seed in seeds:
        try:
            play(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def test_random_history_keeps_all_promises():
    play_all(range(50))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_random_histories_keep_all_promises(part):
    play_all(range(part, 1_000 * THOROUGHNESS, 10))


def test_same_seed_gives_same_history_twice():
    assert play(7) == play(7)
