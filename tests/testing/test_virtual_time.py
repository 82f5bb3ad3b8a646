"""`VirtualTimeLoop`: its time, threads, sockets, children, signals, and runs that can never end.

Threads, sockets and children are real here, and so are the few hundredths of a second that they
take to answer: long enough to catch a loop that does not wait for them. No test depends on how long
it really is.
"""

import asyncio
import contextlib
import functools
import math
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import anyio
import anyio.to_thread
import pytest
from loops import LOOP_FACTORIES, on_virtual_time

from purgatory.testing import DeadlockError, VirtualTimeLoop

A_WHILE = 0.05  # real seconds

at_any_loop_time = pytest.mark.parametrize("start", [0.0, 2e7, 1e9])
ANY_TASKS = [kind for kind in ("virtual", "eager") if kind in LOOP_FACTORIES]
on_virtual_time_with_any_tasks = pytest.mark.asyncio(loop_factories=ANY_TASKS)
around_loops_with_any_tasks = pytest.mark.parametrize(
    "loop_factory", [LOOP_FACTORIES[kind] for kind in ANY_TASKS], ids=ANY_TASKS
)


def run(main, start=0.0, loop_factory=VirtualTimeLoop):
    """Unlike a `Runner` of `loops`, it allows tests about the end of the loop, and about its
    reports then."""
    with asyncio.Runner(loop_factory=functools.partial(loop_factory, start=start)) as runner:
        return runner.run(main)


def answer_late(answer, after=A_WHILE):
    """Work for a thread."""
    time.sleep(after)
    return answer


# Time


def test_start_is_zero_or_given_and_finite():
    for loop, start in [(VirtualTimeLoop(), 0.0), (VirtualTimeLoop(start=1e9), 1e9)]:
        with contextlib.closing(loop):
            assert loop.time() == start
    for start in (math.inf, -math.inf, math.nan):
        with pytest.raises(ValueError, match=f"be a finite number of seconds, not {start}"):
            VirtualTimeLoop(start=start)


@on_virtual_time
async def test_time_stands_still_while_anything_is_ready():
    loop = asyncio.get_running_loop()
    loop.call_later(1, pytest.fail, "the clock moved")
    for _ in range(100):
        await asyncio.sleep(0)
    time.sleep(A_WHILE)  # noqa: ASYNC251  a call that blocks the loop must not move its clock
    assert loop.time() == 0.0


@on_virtual_time
@at_any_loop_time
async def test_timers_run_in_order_exactly_when_due(start):
    chance, loop, ran = random.Random(1), asyncio.get_running_loop(), []
    whens = [
        start + chance.choice([1e-9, 1e-6, 0.1, 3.0, 1e5]) * chance.random() for _ in range(2000)
    ]
    whens += [math.nextafter(when, math.inf) for when in whens[:100]]  # they stay apart
    whens += [start + far for far in (86_400.0 * 3, 1e22, 1e300)]
    whens += [start, start - 1, math.nextafter(start, -math.inf), -math.inf]  # at once
    for when in whens:
        loop.call_at(when, lambda when=when: ran.append((when, loop.time())))
        loop.call_at(when + chance.choice([-1e-9, 0.05, 7]), pytest.fail, "cancelled").cancel()
    await asyncio.sleep(1e-9)  # far from zero this is the same instant
    assert loop.time() == start + 1e-9
    await asyncio.sleep(1e301)
    assert ran == [(when, max(when, start)) for when in sorted(whens)]


def test_jump_lands_exactly_despite_rounding():
    chance = random.Random(1)
    jumps = [(-1000 * chance.random(), chance.random()) for _ in range(100)]
    assert any(start + (when - start) > when for start, when in jumps)

    async def main(when):
        loop = asyncio.get_running_loop()
        reached = loop.create_future()
        loop.call_at(when, lambda: reached.set_result(loop.time()))
        return await reached

    for start, when in jumps:
        assert run(main(when), start) == when


@around_loops_with_any_tasks
def test_the_same_program_gives_the_same_trace_twice(loop_factory):
    def trace(seed):
        chance, lines = random.Random(seed), []
        desk = asyncio.Lock()  # one thread at a time, so no clock decides which answers first

        async def work(number, lock):
            def note(what):
                lines.append((asyncio.get_running_loop().time(), number, what))

            for _ in range(20):
                delay = chance.random()
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

        async def main():
            lock = asyncio.Lock()
            await asyncio.gather(*(work(number, lock) for number in range(10)))

        run(main(), loop_factory=loop_factory)
        return lines

    first = trace(7)
    assert {what for _, _, what in first} == {"locked", "from a thread", "timed out"}
    assert trace(7) == first
    assert trace(8) != first


# Threads


async def to_executor(work):
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def to_anyio_thread_with_own_limiter(work):
    return await anyio.to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))


async def to_own_thread(work):
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def answer():
        try:
            loop.call_soon_threadsafe(future.set_result, work())
        except Exception as exc:
            loop.call_soon_threadsafe(future.set_exception, exc)

    with loop.hold_time():
        threading.Thread(target=answer).start()
        return await future


IN_THREADS = [
    *(asyncio.to_thread, to_executor, to_own_thread),
    *(anyio.to_thread.run_sync, to_anyio_thread_with_own_limiter),
]
in_any_thread = pytest.mark.parametrize("in_thread", IN_THREADS)


@on_virtual_time_with_any_tasks
@in_any_thread
@pytest.mark.parametrize("start", [1e9])
async def test_clock_does_not_jump_past_thread_answer(in_thread, start):
    for number in range(2):  # the second time, a pool has an idle thread to offer
        async with asyncio.timeout(1):
            assert await in_thread(lambda: answer_late("answer")) == "answer"
        assert asyncio.get_running_loop().time() == start + number * 3600
        with pytest.raises(ZeroDivisionError):
            await in_thread(lambda: 1 // 0)
        await asyncio.sleep(3600)  # and idle threads do not hold up the loop


@on_virtual_time
@in_any_thread
async def test_time_waits_for_last_of_many_threads(in_thread):
    loop = asyncio.get_running_loop()

    def work(number):
        time.sleep(A_WHILE * number)
        return loop.time()

    async with asyncio.timeout(1):
        works = (in_thread(functools.partial(work, number)) for number in range(4))
        assert await asyncio.gather(*works) == [0.0] * 4


@on_virtual_time
async def test_thread_with_cancelled_await_delays_nothing():
    release = threading.Event()
    task = asyncio.create_task(asyncio.to_thread(release.wait, 30))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(10)
    release.set()
    assert asyncio.get_running_loop().time() == 10.0


def test_closing_runner_waits_for_running_threads(virtual):
    ended = []

    async def main():
        def work():
            begun.set()
            ended.append(answer_late(True))

        begun = threading.Event()
        task = asyncio.create_task(asyncio.to_thread(work))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()

    # would be a deadlock on 3.11, and a warning after 300 virtual seconds from 3.12 on
    virtual(main)
    assert ended == [True]


def test_anyio_threads_of_another_loop_delay_nothing():
    at_work, release = threading.Event(), threading.Event()

    async def work():
        await anyio.to_thread.run_sync(lambda: [at_work.set(), release.wait()])

    other = threading.Thread(target=lambda: asyncio.run(work()))
    other.start()
    try:
        at_work.wait()
        assert run(asyncio.sleep(3600, "done")) == "done"
    finally:
        release.set()
        other.join()


def test_abandoned_anyio_thread_delays_no_later_run():
    release = threading.Event()

    async def abandon():
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:
            await anyio.to_thread.run_sync(
                lambda: [loop.call_soon_threadsafe(scope.cancel), release.wait(60)],
                abandon_on_cancel=True,
            )
        assert scope.cancelled_caught

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        try:
            runner.run(abandon())
            assert runner.run(asyncio.sleep(3600, "done")) == "done"
        finally:
            release.set()


@on_virtual_time
async def test_held_time_runs_only_due_timers():
    loop, ran = asyncio.get_running_loop(), []
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
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def after_a_while(action, *args):
    """Do it on a thread that the loop knows nothing of, when the loop has long been asleep."""
    threading.Timer(A_WHILE, action, args).start()


@on_virtual_time
async def test_ready_io_is_served_before_clock_moves(pair):
    ours, theirs = pair
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
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
async def test_loop_waits_for_io_unless_timer_is_set(pair):
    ours, theirs = pair
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(loop.sock_recv(ours, 10), 3600)
    assert loop.time() == 3600.0
    after_a_while(theirs.send, b"at last")
    assert await loop.sock_recv(ours, 10) == b"at last"


def in_a_child(*, shell):
    arguments = [sys.executable, "-c", f"import time; time.sleep({A_WHILE})"]
    if shell:
        return asyncio.create_subprocess_shell(subprocess.list2cmdline(arguments))
    return asyncio.create_subprocess_exec(*arguments)


@on_virtual_time
@pytest.mark.parametrize("shell", [False, True])
async def test_loop_and_held_time_wait_for_child(shell):
    # No pipe gives it away, and on 3.11 a thread waits for it.
    loop, child = asyncio.get_running_loop(), await in_a_child(shell=shell)
    assert await child.wait() == 0
    with loop.hold_time():
        child = await in_a_child(shell=shell)
        assert await asyncio.wait_for(child.wait(), 1) == 0
    assert loop.time() == 0.0


# Signals


def interrupt(number=signal.SIGINT):
    signal.pthread_kill(threading.main_thread().ident or 0, number)


async def wait_in_real_time():
    with asyncio.get_running_loop().hold_time():
        await asyncio.Event().wait()


async def jump_for_ever():
    while True:
        await asyncio.sleep(3600)


@pytest.mark.parametrize("endless", [wait_in_real_time, jump_for_ever])
def test_control_c_ends_run_after_cleanup(endless):
    cleaned_up = []

    async def main():
        after_a_while(interrupt)
        try:
            await endless()
        finally:
            cleaned_up.append(True)

    # As in a terminal; a shell has its background jobs, these tests perhaps, ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(main())
    finally:
        signal.signal(signal.SIGINT, before)
    assert cleaned_up == [True]


def test_loop_with_signal_handler_waits_for_signal():
    signals, number = [], signal.SIGWINCH  # which does no harm without a handler

    async def main():
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(number, came.set)
        after_a_while(interrupt, number)
        await came.wait()
        signals.append(number)
        assert loop.remove_signal_handler(number)
        assert not loop.remove_signal_handler(number)
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        run(main())
    assert signals == [number]


# Deadlocks


@at_any_loop_time
@around_loops_with_any_tasks
@pytest.mark.parametrize("more", [0, 500])
def test_deadlock_error_names_stuck_tasks(start, loop_factory, more):
    async def wait_for_godot():
        await asyncio.Event().wait()

    async def main():
        await asyncio.sleep(5)
        waiting = (asyncio.sleep(math.inf) for _ in range(more))
        await asyncio.gather(asyncio.create_task(wait_for_godot(), name="Vladimir"), *waiting)

    with pytest.raises(DeadlockError) as caught:
        run(main(), start, loop_factory)
    first, *tasks = str(caught.value).splitlines()
    assert f"at loop time {start + 5!r}: no timer is set" in first
    assert first.endswith(f"tasks that wait for ever: {more + 2}")
    if more:
        assert len(tasks) == 11 and tasks[-1] == "  and 492 more"
    else:
        shown = "\n".join(sorted(tasks))
        assert "name='Vladimir'" in shown and "main() running" in shown
        assert f"wait_for_godot() running at {__file__}:" in shown


def test_idle_run_forever_is_deadlock():
    with contextlib.closing(VirtualTimeLoop()) as loop:
        with pytest.raises(DeadlockError, match=r"tasks that wait for ever: 0$"):
            loop.run_forever()
        loop.call_later(3600, loop.stop)
        loop.run_forever()
        assert loop.time() == 3600.0


def test_after_deadlock_runner_cancels_tasks_and_continues():
    ends = []

    async def main():
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


def test_finished_threads_io_and_children_hide_no_deadlock(pair):
    async def main():
        for in_thread in IN_THREADS:
            await in_thread(lambda: None)
        pair[1].send(b"the last of it")
        await asyncio.get_running_loop().sock_recv(pair[0], 100)
        child = await in_a_child(shell=False)
        await child.wait()
        await asyncio.Event().wait()
        del child  # it was there to the end

    with pytest.raises(DeadlockError):
        run(main())
