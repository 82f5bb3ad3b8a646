"""Hooks that act at random, and the state that must hold at the end.
Conditions have the form "the value of a key has reached a threshold", and each increase checks its
key at once. So the oracle needs no model: when the loop has come to rest, an operation still waits
only if its condition does not hold. Hooks check, complete, cancel, watch, close, and raise,
ordinary exceptions and exits, in two purgatories of one loop.
"""

import asyncio
from collections import Counter
from random import Random

import pytest
from helpers import in_thread

from purgatory import DelayedOperation, OperationState, Purgatory, PurgatoryClosed
from purgatory.testing import VirtualTimeLoop

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState

KEYS = "abc"
EXITS = (SystemExit, KeyboardInterrupt)
MAX_OPERATIONS = 60
"""Limit of a run; after it hooks watch no more operations."""


class Refusal(Exception):
    pass


class Waits(DelayedOperation):
    """Waits until the value of its first key has reached a threshold; each of its hooks runs a
    script, once."""

    def __init__(self, world, timeout, keys, threshold):
        super().__init__(timeout)
        self.world, self.keys, self.threshold = world, keys, threshold
        self.scripts = {hook: world.script() for hook in ("try", "complete", "expire")}
        self.calls = Counter()
        self.is_being_tried = False
        world.operations.append(self)

    def holds(self):
        return self.world.values[self.keys[0]] >= self.threshold

    def hook(self, name):
        self.calls[name] += 1
        self.world.carry_out(self.scripts.pop(name, ()))

    def try_complete(self):
        assert not self.is_being_tried and not self.is_completed, "entered twice, or after its end"
        self.is_being_tried = True
        try:
            held = self.holds()
            self.hook("try")
            # A condition that became true during the try is left to the check that was requested
            # then.
            return held and self.force_complete()
        finally:
            self.is_being_tried = False

    def on_complete(self):
        assert self.state in (COMPLETED, EXPIRED)
        assert not self.world.finishing, "a hook within a hook"
        self.world.finishing.append(self)
        try:
            self.hook("complete")
        finally:
            self.world.finishing.pop()
        return self.threshold

    def on_expiration(self):
        assert self.state is EXPIRED and self.calls["complete"] == 1
        self.hook("expire")


class Observer:
    def __init__(self):
        self.notified = {}
        self.count = 0

    def operation_ended(self, ended):
        assert ended.state is not PENDING
        self.notified[ended.operation_id] = ended.state
        self.count += 1

    def key_checked(self, key, tried, completed):
        assert 0 <= completed <= tried and tried


class World:
    def __init__(self, seed, exits):
        self.random = Random(seed)
        self.exits = exits
        self.values = dict.fromkeys(KEYS, 0)
        self.operations, self.finishing, self.tasks = [], [], []
        self.observer = Observer()
        self.purgatories = [Purgatory("plain"), Purgatory("observed", observer=self.observer)]
        self.watched_by_observed = set()
        self.reports = []
        self.loop = VirtualTimeLoop()
        self.loop.set_exception_handler(lambda _, context: self.reports.append(context))

    def script(self):
        return [self.action() for _ in range(self.random.choice((0, 0, 0, 1, 1, 2, 3)))]

    def action(self):
        random = self.random
        name = random.choices(
            (
                "raise_value",
                "check",
                "force",
                "cancel",
                "cancel_key",
                "watch",
                "close",
                "refuse",
                "leave",
                "by_thread",
            ),
            (6, 4, 3, 2, 1, 6, 0.2, 1, 1 if self.exits else 0, 1),
        )[0]
        return name, random.random(), random.choice(KEYS)

    def carry_out(self, script):
        for name, number, key in script:
            getattr(self, name)(number, key)

    def some(self, number):
        return self.operations[int(number * len(self.operations))]

    def raise_value(self, number, key):
        self.values[key] += 1
        for purgatory in self.purgatories:
            purgatory.check_and_complete(key)

    def check(self, number, key):
        self.purgatories[number < 0.5].check_and_complete(key)

    def force(self, number, key):
        self.some(number).force_complete()

    def cancel(self, number, key):
        self.some(number).cancel()

    def cancel_key(self, number, key):
        self.purgatories[number < 0.5].cancel_for_key(key)

    def watch(self, number, key):
        if len(self.operations) >= MAX_OPERATIONS:
            return
        purgatory = self.purgatories[number < 0.5]
        keys = [key] if number % 0.1 < 0.05 else [key, *sorted({"other", "more", key} - {key})]
        timeout = [None, 1.0, 5.0, 0.0, 1e9][int(number * 1000) % 5]
        operation = Waits(self, timeout, keys, self.values[key] + int(number * 100) % 3)
        if purgatory is self.purgatories[1]:
            self.watched_by_observed.add(operation)
        try:
            purgatory.try_complete_else_watch(operation, keys)
        except PurgatoryClosed:
            self.watched_by_observed.discard(operation)
            operation.cancel()

    def close(self, number, key):
        self.tasks.append(self.loop.create_task(self.purgatories[number < 0.5].aclose()))

    def refuse(self, number, key):
        raise Refusal

    def leave(self, number, key):
        raise EXITS[number < 0.5]

    def by_thread(self, number, key):
        self.values[key] += 1
        in_thread(lambda: [one.check_and_complete_threadsafe(key) for one in self.purgatories])

    # -- from outside

    def run(self, coroutine=None):
        """Runs the loop until it is at rest, despite exits."""
        for _ in range(200):
            try:
                return self.loop.run_until_complete(coroutine or asyncio.sleep(0.0))
            except EXITS:
                coroutine = None
            except RuntimeError as error:  # work left by an exit stops the loop when it is done
                if "loop stopped" not in str(error):
                    raise
                coroutine = None
            except Refusal:
                return None
        raise AssertionError("it does not come to rest")

    async def step(self):
        operations = [operation for operation in self.operations if not operation.is_completed]
        if operations and self.random.random() < 0.5:
            self.tasks.append(asyncio.ensure_future(self.look(self.random.choice(operations))))
        self.carry_out(
            [self.action()]
            if operations
            else [("watch", self.random.random(), self.random.choice(KEYS))]
        )
        for _ in range(8):
            await asyncio.sleep(0)
        if self.random.random() < 0.2:
            await asyncio.sleep(2)

    @staticmethod
    async def look(operation):
        try:
            await operation
        except (EXITS, Exception):
            pass

    def check_invariants(self):
        for purgatory in self.purgatories:
            purgatory._check()
        waiting = [operation for operation in self.operations if not operation.is_completed]
        for operation in waiting:
            assert not operation.holds(), "a wake-up was lost"
        for operation in self.operations:
            hooks = operation.calls["complete"], operation.calls["expire"]
            if operation.state is CANCELLED:
                assert hooks == (0, 0)
            elif operation.state is COMPLETED:
                assert hooks == (1, 0)
            elif operation.state is EXPIRED:
                assert hooks[0] == 1 and hooks[1] <= 1
        states = Counter(operation.state for operation in self.watched_by_observed)
        notified = Counter(self.observer.notified.values())
        assert self.observer.count == len(self.observer.notified), "notified twice"
        assert {state: notified[state] for state in (COMPLETED, EXPIRED, CANCELLED)} == {
            state: states[state] for state in (COMPLETED, EXPIRED, CANCELLED)
        }
        pending = sum(purgatory.pending for purgatory in self.purgatories)
        assert pending == sum(operation.state is PENDING for operation in self.operations)


@pytest.mark.parametrize("exits", [False, True], ids=["ordinary exceptions", "exits as well"])
@pytest.mark.parametrize(
    "seeds",
    [range(100), pytest.param(range(100, 1000), marks=pytest.mark.slow)],
    ids=["few", "many"],
)
def test_random_hooks_lose_and_repeat_nothing(seeds, exits):
    for seed in seeds:
        world = World(seed, exits)
        try:
            for _ in range(12):
                world.run(world.step())
            for _ in range(30):
                world.run()
            world.run(asyncio.sleep(1.0))
            for _ in range(30):
                world.run()
            try:
                world.check_invariants()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
            for purgatory in world.purgatories:
                world.run(purgatory.aclose())
            for _ in range(10):
                world.run()
            assert not any(purgatory.pending for purgatory in world.purgatories)
            assert all(task.done() for task in world.tasks), "somebody was not answered"
        finally:
            for task in world.tasks:
                task.cancel()
            for _ in range(3):
                world.run()
            world.loop.close()
