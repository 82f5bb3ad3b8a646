"""`VirtualTimeLoop`: its time, threads, sockets, children, signals, and runs that can never end.

Threads, sockets and children are real here, and so are the few hundredths of a second that they
take to answer: long enough to catch a loop that does not wait for them. No test depends on how long
it really is.
"""

import asyncio
import contextlib
import functools
import itertools
import math
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pytest
from loops import LOOP_FACTORIES, LoopFactory, Runner, on_virtual_time

from purgatory.testing import DeadlockError, VirtualTimeLoop

T = TypeVar("T")

A_WHILE = 0.05  # real seconds
STARTS = [0.0, 2e7, 1e9]

at_any_loop_time = pytest.mark.parametrize("start", STARTS)
ANY_TASKS = [kind for kind in ("virtual", "eager") if kind in LOOP_FACTORIES]
on_virtual_time_with_any_tasks = pytest.mark.asyncio(loop_factories=ANY_TASKS)
around_loops_with_any_tasks = pytest.mark.parametrize(
    "loop_factory", [LOOP_FACTORIES[kind] for kind in ANY_TASKS], ids=ANY_TASKS
)


def run(
    main: Coroutine[Any, Any, T], start: float = 0.0, loop_factory: LoopFactory = VirtualTimeLoop
) -> T:
    """Unlike a `Runner` of `loops`, it allows tests about the end of the loop, and about its
    reports then."""
    with asyncio.Runner(loop_factory=functools.partial(loop_factory, start=start)) as runner:
        return runner.run(main)


def answer_late(answer: T, after: float = A_WHILE) -> T:
    """Work for a thread."""
    time.sleep(after)
    return answer


def virtual_loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


# Time


@on_virtual_time_with_any_tasks
async def test_an_hour_of_sleeping_takes_no_real_time() -> None:
    before = time.monotonic()
    for _ in range(3600):
        await asyncio.sleep(1)
    assert virtual_loop().time() == 3600.0
    assert time.monotonic() - before < 1800


def test_time_starts_at_zero_or_given_start() -> None:
    for loop, start in [(VirtualTimeLoop(), 0.0), (VirtualTimeLoop(start=1e9), 1e9)]:
        with contextlib.closing(loop):
            assert loop.time() == start
    for start in (math.inf, -math.inf, math.nan):
        with pytest.raises(
            ValueError, match=f"start must be a finite number of seconds, not {start}"
        ):
            VirtualTimeLoop(start=start)


@on_virtual_time
async def test_time_stands_still_while_anything_is_ready() -> None:
    loop = virtual_loop()
    loop.call_later(1, pytest.fail, "the clock moved")
    for _ in range(100):
        await asyncio.sleep(0)
    time.sleep(A_WHILE)  # noqa: ASYNC251  a call that blocks the loop must not move its clock
    assert loop.time() == 0.0


@on_virtual_time
@at_any_loop_time
async def test_timers_run_in_order_exactly_when_due(start: float) -> None:
    chance = random.Random(1)
    whens = [
        start + chance.choice([1e-9, 1e-6, 0.1, 3.0, 1e5]) * chance.random() for _ in range(2000)
    ]
    whens += [math.nextafter(when, math.inf) for when in whens[:100]]  # they stay apart
    ran: list[tuple[float, float]] = []
    loop = virtual_loop()

    def note(when: float) -> None:
        ran.append((when, loop.time()))

    for when in whens:
        loop.call_at(when, note, when)
    await asyncio.sleep(2e5)
    assert ran == [(when, when) for when in sorted(whens)]


def test_jump_lands_exactly_despite_rounding() -> None:
    chance = random.Random(1)
    jumps = [(-1000 * chance.random(), chance.random()) for _ in range(100)]
    assert any(start + (when - start) > when for start, when in jumps)

    async def main(when: float) -> float:
        loop = virtual_loop()
        reached: asyncio.Future[float] = loop.create_future()
        loop.call_at(when, lambda: reached.set_result(loop.time()))
        return await reached

    for start, when in jumps:
        assert run(main(when), start) == when


@on_virtual_time
@at_any_loop_time
async def test_timer_for_now_or_past_runs_at_once(start: float) -> None:
    loop = virtual_loop()
    for when in (start, start - 1, math.nextafter(start, -math.inf), -math.inf):
        reached = loop.create_future()
        loop.call_at(when, reached.set_result, None)
        await reached
        assert loop.time() == start
    await asyncio.sleep(1e-9)  # far from zero this is the same instant
    assert loop.time() == start + 1e-9


@on_virtual_time
@at_any_loop_time
@pytest.mark.parametrize("ahead", [86_400.0 * 3, 1e9, 1e22, 1e300])
async def test_no_deadline_is_too_far(start: float, ahead: float) -> None:
    loop = virtual_loop()
    await asyncio.sleep(ahead)
    reached = loop.time()
    await asyncio.sleep(1)
    assert reached == start + ahead


@on_virtual_time
@at_any_loop_time
async def test_a_cancelled_timer_does_not_move_the_clock(start: float) -> None:
    loop = virtual_loop()
    loop.call_later(1, pytest.fail, "it was cancelled").cancel()
    await asyncio.sleep(2)
    for _ in range(1000):
        loop.call_later(1, pytest.fail, "it was cancelled").cancel()
    loop.call_soon(loop.call_later(3, pytest.fail, "it was cancelled").cancel)
    await asyncio.sleep(5)
    assert loop.time() == start + 7


@on_virtual_time_with_any_tasks
@at_any_loop_time
async def test_timeouts_strike_when_they_should(start: float) -> None:
    loop = virtual_loop()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 3600)
    assert loop.time() == start + 3600
    with pytest.raises(TimeoutError):
        async with asyncio.timeout_at(start + 7200):
            await asyncio.sleep(1e6)
    assert loop.time() == start + 7200
    async with asyncio.timeout(2):
        await asyncio.sleep(1)
    assert await asyncio.wait_for(asyncio.sleep(0, "done"), 0.001) == "done"
    assert loop.time() == start + 7201


@around_loops_with_any_tasks
def test_the_same_program_gives_the_same_trace_twice(loop_factory: LoopFactory) -> None:
    def trace(seed: int) -> list[tuple[float, int, str]]:
        chance = random.Random(seed)
        lines: list[tuple[float, int, str]] = []
        desk = asyncio.Lock()  # one thread at a time, so no clock decides which answers first

        async def worker(number: int, queue: asyncio.Queue[float], lock: asyncio.Lock) -> None:
            def note(what: object) -> None:
                lines.append((virtual_loop().time(), number, str(what)))

            while True:
                delay = await queue.get()
                try:
                    async with asyncio.timeout(chance.random()), lock:
                        note("locked")
                        await asyncio.sleep(delay)
                    async with desk:
                        for _ in range(20):  # until every other worker waits
                            await asyncio.sleep(0)
                        note(await asyncio.to_thread(answer_late, "from a thread", delay / 1000))
                except TimeoutError:
                    note("timed out")
                queue.task_done()

        async def main() -> None:
            queue: asyncio.Queue[float] = asyncio.Queue()
            lock = asyncio.Lock()
            workers = [asyncio.create_task(worker(number, queue, lock)) for number in range(10)]
            for _ in range(200):
                queue.put_nowait(chance.random())
            await queue.join()
            for task in workers:
                task.cancel()

        run(main(), loop_factory=loop_factory)
        return lines

    first = trace(7)
    assert {what for _, _, what in first} == {"locked", "from a thread", "timed out"}
    assert trace(7) == first
    assert trace(8) != first


# Threads


async def to_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


async def to_executor(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def to_anyio_thread(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work)


async def to_anyio_thread_with_own_limiter(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))


async def to_own_thread(work: Callable[[], T]) -> T:
    loop = virtual_loop()
    future: asyncio.Future[T] = loop.create_future()

    def answer() -> None:
        try:
            loop.call_soon_threadsafe(future.set_result, work())
        except Exception as exc:
            loop.call_soon_threadsafe(future.set_exception, exc)

    with loop.hold_time():
        threading.Thread(target=answer).start()
        return await future


in_any_thread = pytest.mark.parametrize(
    "in_thread",
    [to_thread, to_executor, to_anyio_thread, to_anyio_thread_with_own_limiter, to_own_thread],
)
InThread = Callable[[Callable[[], object]], Awaitable[object]]


@on_virtual_time_with_any_tasks
@in_any_thread
@pytest.mark.parametrize("start", [1e9])
async def test_clock_does_not_jump_past_thread_answer(in_thread: InThread, start: float) -> None:
    for number in range(2):  # the second time, a pool has an idle thread to offer
        async with asyncio.timeout(1):
            assert await in_thread(lambda: answer_late("answer")) == "answer"
        assert virtual_loop().time() == start + number * 3600
        with pytest.raises(ZeroDivisionError):
            await in_thread(lambda: 1 // 0)
        await asyncio.sleep(3600)  # and idle threads do not hold up the loop


@on_virtual_time
@in_any_thread
async def test_time_waits_for_last_of_many_threads(
    in_thread: InThread,
) -> None:
    loop = virtual_loop()

    def work(number: int) -> float:
        time.sleep(A_WHILE * number)
        return loop.time()

    async with asyncio.timeout(1):
        times = await asyncio.gather(
            *(in_thread(functools.partial(work, number)) for number in range(4))
        )
    assert times == [0.0] * 4


@on_virtual_time
async def test_thread_with_cancelled_await_delays_nothing() -> None:
    release = threading.Event()
    task = asyncio.create_task(asyncio.to_thread(release.wait, 30))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(10)
    release.set()
    assert virtual_loop().time() == 10.0


def test_closing_runner_waits_for_running_threads(virtual: Runner) -> None:
    ended: list[bool] = []

    async def main() -> None:
        def work() -> None:
            begun.set()
            ended.append(answer_late(True))

        begun = threading.Event()
        task = asyncio.create_task(asyncio.to_thread(work))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()

    virtual(
        main
    )  # would be a deadlock on 3.11, and a warning after 300 virtual seconds from 3.12 on
    assert ended == [True]


def test_anyio_threads_of_another_loop_delay_nothing() -> None:
    at_work, release = threading.Event(), threading.Event()

    def work() -> None:
        at_work.set()
        release.wait()

    other = threading.Thread(target=lambda: asyncio.run(to_anyio_thread(work)))
    other.start()
    try:
        at_work.wait()
        assert run(asyncio.sleep(3600, "done")) == "done"
    finally:
        release.set()
        other.join()


def test_abandoned_anyio_thread_delays_no_later_run() -> None:
    release = threading.Event()

    async def abandon() -> None:
        loop = virtual_loop()

        def work() -> None:
            loop.call_soon_threadsafe(scope.cancel)
            release.wait(60)

        with anyio.CancelScope() as scope:
            await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        assert scope.cancelled_caught

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        try:
            runner.run(abandon())
            assert runner.run(asyncio.sleep(3600, "done")) == "done"
        finally:
            release.set()


@on_virtual_time
async def test_held_time_runs_only_due_timers() -> None:
    loop = virtual_loop()
    ran: list[str] = []
    loop.call_later(1, ran.append, "a second later")
    first, second = loop.hold_time(), loop.hold_time()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    loop.call_at(loop.time(), ran.append, "at once")
    await to_own_thread(lambda: time.sleep(A_WHILE))
    ran.append("answered")
    second.__exit__(None, None, None)
    with contextlib.suppress(ZeroDivisionError), loop.hold_time():
        raise ZeroDivisionError
    assert loop.time() == 0.0
    await asyncio.sleep(2)
    assert ran == ["at once", "answered", "a second later"]


# Sockets and children


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def after_a_while(action: Callable[..., object], *args: object) -> None:
    """Do it on a thread that the loop knows nothing of, when the loop has long been asleep."""
    threading.Timer(A_WHILE, action, args).start()


@on_virtual_time
async def test_ready_io_is_served_before_clock_moves(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    loop = virtual_loop()
    readable = asyncio.Event()
    loop.add_reader(ours, readable.set)
    for _ in range(100):
        async with asyncio.timeout(1):
            theirs.send(b"a line")
            await readable.wait()
        assert ours.recv(10) == b"a line"
        readable.clear()
    loop.remove_reader(ours)
    assert loop.time() == 0.0


@on_virtual_time
async def test_loop_waits_for_io_unless_timer_is_set(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    loop = virtual_loop()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(loop.sock_recv(ours, 10), 3600)
    assert loop.time() == 3600.0
    after_a_while(theirs.send, b"at last")
    assert await loop.sock_recv(ours, 10) == b"at last"


@on_virtual_time
@at_any_loop_time
async def test_streams_over_the_loopback_work_between_sleeps(start: float) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
        writer.close()

    loop = virtual_loop()
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for minute in itertools.count(1):
            await asyncio.sleep(60)
            writer.write(b"is anybody there\n")
            with loop.hold_time():  # the kernel may take its time
                assert await asyncio.wait_for(reader.readline(), 1) == b"IS ANYBODY THERE\n"
            assert loop.time() == start + 60 * minute
            if minute == 10:
                break
        writer.close()
        await writer.wait_closed()


def in_a_child(*, shell: bool) -> Awaitable[asyncio.subprocess.Process]:
    arguments = [sys.executable, "-c", f"import time; time.sleep({A_WHILE})"]
    if shell:
        return asyncio.create_subprocess_shell(subprocess.list2cmdline(arguments))
    return asyncio.create_subprocess_exec(*arguments)


@on_virtual_time
@pytest.mark.parametrize("shell", [False, True])
async def test_loop_and_held_time_wait_for_child(shell: bool) -> None:
    # No pipe gives it away, and on 3.11 a thread waits for it.
    child = await in_a_child(shell=shell)
    assert await child.wait() == 0
    with virtual_loop().hold_time():
        child = await in_a_child(shell=shell)
        assert await asyncio.wait_for(child.wait(), 1) == 0
    assert virtual_loop().time() == 0.0


# Signals


def interrupt(number: int = signal.SIGINT) -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, number)


async def wait_in_real_time() -> None:
    with virtual_loop().hold_time():
        await asyncio.Event().wait()


async def jump_for_ever() -> None:
    while True:
        await asyncio.sleep(3600)


@pytest.fixture
def control_c_interrupts() -> Iterator[None]:
    """As in a terminal; a shell has its background jobs, these tests perhaps, ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("control_c_interrupts")
@pytest.mark.parametrize("endless", [wait_in_real_time, jump_for_ever])
def test_control_c_ends_run_after_cleanup(endless: Callable[[], Awaitable[None]]) -> None:
    cleaned_up: list[bool] = []

    async def main() -> None:
        after_a_while(interrupt)
        try:
            await endless()
        finally:
            cleaned_up.append(True)

    with pytest.raises(KeyboardInterrupt):
        run(main())
    assert cleaned_up == [True]


def test_loop_with_signal_handler_waits_for_signal() -> None:
    signals: list[int] = []

    async def main() -> None:
        loop = virtual_loop()
        number = signal.SIGWINCH  # one that does no harm without a handler
        came = asyncio.Event()
        loop.add_signal_handler(number, came.set)
        after_a_while(interrupt, number)
        await came.wait()
        signals.append(number)
        assert loop.remove_signal_handler(number)
        assert not loop.remove_signal_handler(number)
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        run(main())
    assert signals == [signal.SIGWINCH]


# Deadlocks


@at_any_loop_time
@around_loops_with_any_tasks
def test_deadlock_error_names_stuck_tasks(start: float, loop_factory: LoopFactory) -> None:
    async def wait_for_godot() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.sleep(5)
        await asyncio.create_task(wait_for_godot(), name="Vladimir")

    with pytest.raises(DeadlockError) as caught:
        run(main(), start, loop_factory)
    message = str(caught.value)
    assert f"at loop time {start + 5!r}: no timer is set" in message
    assert "tasks that wait for ever: 2\n" in message
    assert "name='Vladimir'" in message
    assert f"wait_for_godot() running at {__file__}:" in message


def test_error_counts_many_stuck_tasks() -> None:
    async def main() -> None:
        forever = (
            asyncio.sleep(math.inf) if number else asyncio.Event().wait() for number in range(500)
        )
        await asyncio.gather(*forever)

    with pytest.raises(DeadlockError) as caught:
        run(main())
    lines = str(caught.value).splitlines()
    assert "no timer is set" in lines[0]
    assert lines[0].endswith("tasks that wait for ever: 501")
    assert "main() running" in lines[1]
    assert lines[-1] == "  and 491 more"
    assert len(lines) == 12


def test_idle_run_forever_is_deadlock() -> None:
    with contextlib.closing(VirtualTimeLoop()) as loop:
        with pytest.raises(DeadlockError, match=r"tasks that wait for ever: 0$"):
            loop.run_forever()
        loop.call_later(3600, loop.stop)
        loop.run_forever()
        assert loop.time() == 3600.0


def test_after_deadlock_runner_cancels_tasks_and_continues() -> None:
    ends: list[str] = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            ends.append("cancelled")
            raise

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        with pytest.raises(DeadlockError):
            runner.run(main())
        assert runner.run(asyncio.sleep(1, "still alive")) == "still alive"
        assert ends == []
    assert ends == ["cancelled"]


@in_any_thread
def test_finished_threads_do_not_hide_deadlock(in_thread: InThread) -> None:
    async def main() -> None:
        await in_thread(lambda: None)
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        run(main())


def test_unwatched_io_does_not_hide_deadlock(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    async def main() -> None:
        pair[1].send(b"the last of it")
        await virtual_loop().sock_recv(pair[0], 100)
        child = await in_a_child(shell=False)
        await child.wait()
        await asyncio.Event().wait()
        del child  # it was there to the end

    with pytest.raises(DeadlockError):
        run(main())
