"""Programs for `test_kernel`, each run in its own process: `python kernel_programs.py NAME ...`.
They use the public API and print each result. The output must be the same with and without the
kernel in C.
"""

import asyncio
import gc
import inspect
import logging
import math
import random
import re
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from invariants import check

import purgatory
from purgatory import (
    DelayedOperation,
    Ended,
    OperationReused,
    Purgatory,
    ThresholdPurgatory,
    TimerTask,
    WheelTimer,
)
from purgatory._core.dispatcher import dispatcher_of
from purgatory.testing import VirtualTimeLoop

logging.disable(logging.CRITICAL)


class Broken(Exception):
    pass


class WholeSeconds(VirtualTimeLoop):  # type: ignore[misc]
    """A loop whose clock gives integers. They are rounded up, so that no timer is early."""

    def time(self) -> int:  # type: ignore[override]
        return int(super().time())

    def _set_time(self, now: float) -> None:
        super()._set_time(math.ceil(now))


class CollectingKey:
    """A key that has the hash of others, and at times lets garbage be collected."""

    def __init__(self, number: int) -> None:
        self.number, self.collects = number, False

    def __hash__(self) -> int:
        if self.collects:
            gc.collect(0)
        return self.number % 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CollectingKey) and other.number == self.number

    def __repr__(self) -> str:
        return f"key {self.number}"


class Probe(DelayedOperation[Any]):
    __slots__ = ("number", "program")

    def __init__(
        self, program: "Program", timeout: float | None, deadline: float | None = None
    ) -> None:
        super().__init__(timeout, deadline=deadline)
        self.program, self.number = program, len(program.operations)

    def try_complete(self) -> Any:
        program = self.program
        program.note(self.number, "try")
        program.act("try")
        choice = program.random.random()
        if choice < 0.03:
            raise Broken("try")
        if choice < 0.06:
            return "true, without completing"
        return choice < 0.4 and self.force_complete()

    def on_complete(self) -> Any:
        program = self.program
        program.note(self.number, "complete", self.state.value, self.is_completed)
        program.act("complete")
        if program.random.random() < 0.05:
            raise Broken("complete")
        return self.number

    def on_expiration(self) -> None:
        self.program.note(self.number, "expire")
        self.program.act("expire")

    def __repr__(self) -> str:
        return f"operation {self.number} {self.state.value}"


class Watching:
    """An observer that notes each event, makes random calls, and at times raises or exits."""

    def __init__(self, program: "Program") -> None:
        self.program = program

    def operation_ended(self, ended: Ended) -> None:
        self.act("ended", *ended[:-1])  # the last one is an address

    def key_checked(self, key: object, tried: int, completed: int) -> None:
        self.act("checked", key, tried, completed)

    def act(self, *what: object) -> None:
        program = self.program
        program.note(*what)
        if program.random.random() < 0.3:
            program.act("observer")
        choice = program.random.random()
        if choice < 0.03:
            raise Broken("observer")
        if choice < 0.035:
            raise SystemExit
        if choice < 0.04 and program.closing is None:
            program.closing = asyncio.ensure_future(program.reopen())


class Starting(Watching):
    def operation_started(self, operation: Any) -> None:
        self.act("started", getattr(operation, "number", None))


MAX_LOG = 10_000
"""Lines of a log. Afterwards hooks and observers call nothing, since their calls cause more."""


class Program:
    """Random calls from outside, from hooks and from observers, on one purgatory and one timer;
    `log` records each result."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log: list[tuple[object, ...]] = []
        self.operations: list[Probe] = []
        self.timers: list[TimerTask] = []
        self.depth = 0
        self.has_own_keys = seed % 3 == 0
        plain: list[Any] = ["a", "b", 1, 1.0, ("t", 2), None]
        self.keys = [CollectingKey(i) for i in range(6)] if self.has_own_keys else plain
        self.closing: asyncio.Future[None] | None = None
        observers = ([], [], [Watching(self)], [Starting(self)], [Starting(self), Watching(self)])
        self.purgatory: Purgatory[Probe] = Purgatory(
            max_pending=self.random.choice((None, 40)),
            tick=self.random.choice((0.001, 0.5)),
            observer=observers[seed % 5],
        )
        self.timer = WheelTimer(tick=self.random.choice((0.001, 0.1)), wheel_size=4)

    def note(self, *what: object) -> None:
        self.log.append(what)

    def attempt(
        self, name: str, function: Callable[..., object], *args: object, **kw: object
    ) -> None:
        try:
            value: object = function(*args, **kw)
        except (Exception, SystemExit) as error:
            value = f"{type(error).__name__}: {error}"
        self.note(name, repr(value))

    def act(self, where: str) -> None:
        """Makes a few random calls."""
        if self.depth > 3 or len(self.log) > MAX_LOG:
            return
        self.depth += 1
        try:
            for _ in range(self.random.randrange(3)):
                self.act_once(where)
        finally:
            self.depth -= 1

    def act_once(self, where: str) -> None:
        choose, key = self.random.choice, self.random.choice(self.keys)
        what = self.random.randrange(15)
        if self.has_own_keys and what < 2:
            key.collects = not key.collects
        if what < 4:
            self.attempt(f"{where} check", self.purgatory.check_and_complete, key)
        elif what < 8:
            self.watch()
        elif what == 8 and self.operations:
            self.attempt(f"{where} force", choose(self.operations).force_complete)
        elif what == 9 and self.operations:
            self.attempt(f"{where} cancel", choose(self.operations).cancel)
        elif what == 10:
            self.attempt(f"{where} cancel key", self.purgatory.cancel_for_key, key)
        elif what == 11:
            gc.collect(0)
        elif what == 12:
            delay = choose((0.0, 0.001, 0.3, 2.0, -1.0, 1e9, float("nan"), 1, "text", float("inf")))
            self.attempt(f"{where} timer", self.schedule, delay)
        elif what == 13 and self.timers:
            self.attempt(f"{where} timer cancel", choose(self.timers).cancel)
        elif what == 14 and self.timers:
            when = self.purgatory_time() + choose((-1.0, 0.0, 0.2, 5.0, 1e7))
            self.attempt(f"{where} reschedule", choose(self.timers).reschedule, when)

    def purgatory_time(self) -> float:
        return asyncio.get_running_loop().time()

    def schedule(self, delay: Any) -> object:
        number = len(self.timers)

        def fired(*args: object) -> None:
            self.note("fired", number, args, self.purgatory_time())
            self.act("timer")

        args = self.random.choice(((), (1,), (1, 2)))
        self.timers.append(self.timer.call_later(delay, fired, *args))
        return number

    def watch(self) -> None:
        if len(self.operations) > 2000:
            return
        choose = self.random.choice
        timeout = choose((None, 0, -1.0, 0.001, 0.05, 1, 1.5, 30.0, 1e9, float("inf")))
        deadline = None
        if timeout is None:
            deadline = choose((None, None, 0.0, -0.0, 2, self.purgatory_time() + 0.7))
        operation = Probe(self, timeout, deadline)
        self.operations.append(operation)
        keys = self.random.sample(self.keys, self.random.randint(0, 4))
        keys = choose((tuple, list, list, iter, lambda keys: tuple(keys * 2)))(keys)
        if choose((True, True, False)):
            self.attempt("watch", self.purgatory.try_complete_else_watch, operation, keys)
        else:
            self.attempt(
                "watch", self.purgatory.try_complete_else_watch, keys=keys, operation=operation
            )
        self.count()
        self.note(operation.deadline)

    def count(self) -> None:
        one = self.purgatory
        self.attempt("counts", lambda: (one.pending, one.watched, one.statistics()))

    def report(self, _: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        frames, traceback = [], error.__traceback__ if error is not None else None
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == __file__:
                frames.append(traceback.tb_frame.f_code.co_name)
            traceback = traceback.tb_next
        self.note("reported", context["message"], repr(error), frames)

    async def reopen(self) -> None:
        self.note("closed", repr(await self.purgatory.aclose()))
        await self.purgatory.__aenter__()
        self.closing = None

    async def main(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self.report)
        tasks = []
        for i in range(150):
            with suppress(SystemExit):
                self.act("main")
            if i % 10 == 0:
                tasks.append(asyncio.create_task(self.wait(i)))
            if i % 12 == 0 and tasks:
                self.random.choice(tasks).cancel()
            if self.random.random() < 0.3:
                await asyncio.sleep(self.random.choice((0, 0.001, 0.2, 3.0)))
        await asyncio.sleep(3)
        check(self.timer)
        if not self.has_own_keys:
            check(self.purgatory)
        self.count()
        self.note(await self.purgatory.aclose())
        one = self.purgatory
        assert one.pending == one.watched == one.statistics().keys == 0
        for timer in self.timers:
            self.note(timer.cancelled(), repr(timer.when()))
        async with asyncio.timeout(5):  # all are answered by now
            await asyncio.gather(*tasks, return_exceptions=True)
        for operation in self.operations:
            self.attempt("result", operation.result)

    async def wait(self, number: int) -> None:
        operation = Probe(self, self.random.choice((None, 0.5, 3.0)))
        self.operations.append(operation)
        try:
            waited: object = await self.purgatory.wait(operation, [self.random.choice(self.keys)])
        except BaseException as error:
            waited = repr(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self.note("waited", number, operation.number, waited if "waited" in locals() else None)


def programs(first: str, count: str) -> None:
    """Prints the log of random programs."""
    for seed in range(int(first), int(first) + int(count)):
        program = Program(seed)
        loop = (WholeSeconds if seed % 4 == 3 else VirtualTimeLoop)()
        task = loop.create_task(program.main())
        while not task.done():  # despite exits
            try:
                loop.run_until_complete(task)
            except SystemExit:
                program.note("exit")
        task.result()
        loop.close()
        for line in program.log:
            print(re.sub(r"0x[0-9a-f]+", "0x", f"{seed} {line}"))


# -- half-made objects


class Idle(DelayedOperation[Any]):
    def try_complete(self) -> bool:
        return False


class Lie:
    """Equals everything, is everything, and returns itself."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__

    def __call__(self, *_: object) -> "Lie":
        return self

    def __getattr__(self, name: str) -> "Lie":
        return self


async def fuzz_main(seed: int) -> None:
    """Calls every compiled method with half-made objects and wrong arguments."""
    chance = random.Random(seed)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    for _ in range(100):
        one: Purgatory[Idle] = Purgatory()
        timer = WheelTimer()
        operation, other, half = Idle(30.0), Idle(30.0), Idle.__new__(Idle)
        one.try_complete_else_watch(operation, ["a", "b"])
        one.try_complete_else_watch(other, chance.choice((["a"], ["c"])))
        task = timer.call_later(30.0, bool)
        half_task = TimerTask.__new__(TimerTask)
        arguments = [None, 5, -1, "x", 2.5, float("nan"), float("inf"), (), [], {}, Lie(), True]
        arguments += [operation, other, half, one, task, half_task, ("a", "b"), ["c"], 9e9]
        calls: list[Callable[..., object]] = [Idle, purgatory.timeout]
        calls += [one.__init__, timer.__init__, purgatory.timeout(30.0).__init__]  # type: ignore[misc]
        for each in (operation, other, half):
            calls += [each.force_complete, each.cancel, each._timer_expired, each._op_finish]
            calls += [each.__init__, each.try_complete, each.on_complete, each.on_expiration]  # type: ignore[misc]
        for where in (one, Purgatory.__new__(Purgatory)):
            calls += [where.try_complete_else_watch, where.check_and_complete]
        for clock in (timer, WheelTimer.__new__(WheelTimer)):
            calls += [clock.call_later, clock.call_at]
        for one_task in (task, half_task):
            calls += [one_task.cancel, one_task.reschedule]
        calls = [
            partial(call, *chance.choices(arguments, k=count))
            for call in calls
            for count in (0, 1, 2, 2, 3)
        ]
        chance.shuffle(calls)
        for call in calls[:40]:
            try:
                call()
            except Exception:
                pass
            if chance.random() < 0.05:
                gc.collect(1)
        # the loop's dispatcher is reused in the next round
        dispatcher: Any = dispatcher_of(asyncio.get_running_loop())
        dispatcher.current, dispatcher._continuation_scheduled = None, False
        dispatcher.queue.clear()
        for each in (operation, other):  # breaks the cycle with what they wait in
            try:
                each.cancel()
            except Exception:
                pass
        gc.collect(0)


def fuzz(first: str, count: str) -> None:
    """Half-made and misused objects: any exception is allowed, a crash is not."""
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None
    for seed in range(int(first), int(first) + int(count)):
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(fuzz_main(seed))
        finally:
            loop.close()
    print("no crash")


# -- keys that use the purgatory, and memory that is short


class WatchingKey:
    """A key that has the hash and the value of all of its kind. The comparison numbered `after`
    watches an operation under it."""

    def __init__(self, where: Purgatory[Any], after: int) -> None:
        self.where, self.after = where, after

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        self.after -= 1
        if self.after == 0:
            self.where.try_complete_else_watch(Idle(30.0), [self])
        return True


async def watching_keys_main() -> None:
    for after in range(1, 12):
        one: Purgatory[Any] = Purgatory()
        key = WatchingKey(one, after)
        for _ in range(4):
            one.try_complete_else_watch(Idle(30.0), [key, WatchingKey(one, 0)])
        one.check_and_complete(WatchingKey(one, 0))
        ended = one.cancel_for_key(key)
        print(after, {type(each) for each in ended})
        await one.aclose()


def watching_keys() -> None:
    """A key's `__eq__` watches operations under this key: misuse, but no crash."""
    asyncio.run(watching_keys_main())


def short_of_memory(count: str) -> None:
    """Each of the first allocations of a call fails once: any exception is allowed, a crash is
    not."""
    from _testcapi import (  # type: ignore[import-not-found]
        remove_mem_hooks,
        set_nomemory,
    )

    class Failing(DelayedOperation[Any]):
        way = ""

        def try_complete(self) -> bool:
            if self.way == "try":
                raise Broken
            return self.way != "" and self.force_complete()

        def on_complete(self) -> Any:
            if self.way == "hook":
                raise Broken
            return self

    class Raising:
        def operation_ended(self, ended: object) -> None:
            raise Broken

        def key_checked(self, *_: object) -> None:
            raise Broken

    def check(one: Purgatory[Any], operation: Failing, way: str) -> None:
        operation.way = way
        one.check_and_complete("a")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        for start in range(int(count)):
            for way in ("try", "hook", "value", ""):
                for observer in (None, Raising()):
                    one: Purgatory[Any] = Purgatory(observer=observer)
                    operation, other = Failing(30.0), Failing(30.0)
                    one.try_complete_else_watch(operation, ["a", "b"])
                    calls: list[Callable[[], object]] = [
                        partial(check, one, operation, way),
                        partial(one.try_complete_else_watch, other, ("a", "c")),
                        operation.force_complete,
                    ]
                    for call in calls:
                        with suppress(Exception):
                            set_nomemory(start, start + 1)
                            call()
                        remove_mem_hooks()
                    dispatcher = dispatcher_of(loop)  # reused in the next round
                    dispatcher.current, dispatcher._continuation_scheduled = None, False
                    dispatcher.queue.clear()

    asyncio.run(main())
    print("no crash")


# -- leaks


def leaks(rounds: str) -> None:
    """Prints the paths that leak memory, objects or references."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        one: Purgatory[Any] = Purgatory()
        timer = WheelTimer()
        thresholds: ThresholdPurgatory[str, int] = ThresholdPurgatory()

        class Probe(DelayedOperation[Any]):
            __slots__ = ("way",)

            def __init__(self, timeout: float | None, way: str = "") -> None:
                super().__init__(timeout)
                self.way = way

            def try_complete(self) -> Any:
                if self.way == "raise":
                    raise Broken
                return self.way == "lie" or (self.way == "ready" and self.force_complete())

            def on_complete(self) -> object:
                if self.way == "hook":
                    raise Broken
                return object()

        def watch(keys: Any, timeout: Any = 30.0, way: str = "") -> Any:
            operation = Probe(timeout, way)
            one.try_complete_else_watch(operation, keys)
            return operation

        def check_one() -> None:
            watch(["a"]).way = "ready"
            one.check_and_complete("a")

        def check_many() -> None:
            for operation in [watch(["a"]) for _ in range(3)]:
                operation.way = "ready"
            one.check_and_complete("a")

        def share() -> None:
            first, second = watch(("a", "b", "c")), watch(("b", "a", 7.5))
            first.force_complete()
            second.cancel()

        def fail_hook() -> None:
            operation = watch(["h"])
            operation.way = "hook"
            operation.force_complete()

        def refuse(keys: Any) -> None:
            with suppress(TypeError, ValueError):
                watch(keys)

        def reuse() -> None:
            operation = watch(["a"])
            with suppress(OperationReused):
                one.try_complete_else_watch(operation, ["a"])
            operation.cancel()

        async def wait() -> None:
            operation = Probe(30.0)
            loop.call_soon(operation.force_complete)
            await one.wait(operation, ["w"])

        async def wait_cancelled() -> None:
            task = asyncio.create_task(one.wait(Probe(30.0), ["w"]))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        async def expire() -> None:
            watch(("x", "y"), 0.0005)
            watch(["x"], 0.0005)
            await asyncio.sleep(0.003)

        async def timeouts() -> None:
            async with purgatory.timeout(30):
                pass
            loop.call_soon(thresholds.advance, "k", (thresholds.value("k") or 0) + 1)
            await thresholds.wait("k", (thresholds.value("k") or 0) + 1, 30)

        def timers() -> None:
            task = timer.call_later(30.0, print)
            task.reschedule(loop.time() + 60)
            task.reschedule(loop.time() + 20)
            task.cancel()
            timer.call_later(30.0, print, 1).cancel()
            for wrong in (float("nan"), "x"):
                with suppress(TypeError, ValueError):
                    timer.call_later(wrong, print)  # type: ignore[arg-type]

        paths: dict[str, Callable[[], Any]] = {
            "check": check_one,
            "check_many": check_many,
            "share": share,
            "fail_hook": fail_hook,
            "cancel": lambda: watch(["a", "b"]).cancel(),
            "force": lambda: watch(["a"], None).force_complete(),
            "first try": lambda: watch(["a"], 30.0, "ready"),
            "raise": lambda: watch(["a"], 30.0, "raise"),
            "lie": lambda: watch(["a"], 30.0, "lie"),
            "late": lambda: watch(["a"], 0),
            "no keys": lambda: refuse(()),
            "text": lambda: refuse("text"),
            "unhashable": lambda: refuse((1, [])),
            "unhashable alone": lambda: refuse([[]]),
            "reuse": reuse,
            "timers": timers,
            "wait": wait,
            "wait_cancelled": wait_cancelled,
            "expire": expire,
            "timeouts": timeouts,
        }
        for name, path in paths.items():
            count = int(rounds) // 20 if inspect.iscoroutinefunction(path) else int(rounds)
            kept: list[int] = []
            for _ in range(3):
                for i in range(count):
                    result = path()
                    if result is not None and asyncio.iscoroutine(result):
                        await result
                    if i % 500 == 0:
                        await asyncio.sleep(0)
                del result
                await asyncio.sleep(0.01)
                await asyncio.sleep(0.01)
                gc.collect()
                watched = [None, True, False, 0, 1, Probe, DelayedOperation, one, timer, loop]
                watched += [purgatory.OperationState.PENDING, purgatory.OperationState.COMPLETED]
                size = tracemalloc.get_traced_memory()[0] // 64
                kept.append(
                    size
                    + sum(
                        sys.getrefcount(each) for each in watched if sys.getrefcount(each) < 1 << 30
                    )
                )
            if kept[2] - kept[1] > count // 20:
                print(f"{name}: {kept}")
        check(one)
        check(timer)
        await one.aclose()

    tracemalloc.start()
    asyncio.run(main())
    print("done")


if __name__ == "__main__":
    {
        "programs": programs,
        "fuzz": fuzz,
        "watching_keys": watching_keys,
        "short_of_memory": short_of_memory,
        "leaks": leaks,
    }[sys.argv[1]](*sys.argv[2:])  # type: ignore[operator]
