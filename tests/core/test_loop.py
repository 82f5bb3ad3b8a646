"""`LoopBinding`: the loop of an object's first use, and the errors on every other loop."""

import asyncio
import threading
import time

import pytest
from helpers import in_thread
from loops import on_every_loop

from purgatory import WrongLoop
from purgatory._core.loop import UNBOUND, LoopBinding, clock_of
from purgatory.testing import VirtualTimeLoop

pytestmark = on_every_loop


async def bind(binding, *args):
    """Binds it to the running loop."""
    return binding.bind(*args)


def refusal(call, *args):
    """The message of a `WrongLoop`."""
    with pytest.raises(WrongLoop) as raised:
        call(*args)
    return str(raised.value)


class Nameless:
    def __repr__(self):
        raise ZeroDivisionError


class Counted:
    """The number of calls of its repr."""

    shown = 0

    def __repr__(self):
        Counted.shown += 1
        return "<counted>"


# The first use


def test_nothing_is_bound_before_its_first_use(loop_factory):
    binding = LoopBinding()
    assert binding.loop is UNBOUND and not binding.is_bound
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(bind(binding, "use it")) is True
        assert binding.loop is runner.get_loop() and binding.is_bound
        assert runner.run(bind(binding, "use it")) is False
        assert binding.loop is runner.get_loop()


def test_without_a_running_loop_nothing_is_bound():
    binding = LoopBinding()
    said = "cannot use it: no event loop is running in this thread to be bound to"
    assert refusal(binding.bind, "use it") == said
    assert not binding.is_bound
    asyncio.run(bind(binding, "use it"))
    assert binding.is_bound


def test_concurrent_first_use_refuses_one_of_two_threads():
    barrier, bindings = threading.Barrier(2), [LoopBinding() for _ in range(20)]
    results = [[] for _ in bindings]

    async def use():
        for binding, said in zip(bindings, results, strict=True):
            barrier.wait(60)
            try:
                said.append(binding.bind("use it"))
            except WrongLoop as error:
                said.append(str(error))
        barrier.wait(60)  # keeps both loops running until both are done

    threads = [threading.Thread(target=asyncio.run, args=(use(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for said in results:
        [refused] = [result for result in said if result is not True]
        assert len(said) == 2 and "this is another thread" in refused


# Another loop


def test_each_kind_of_wrong_caller_has_its_message(loop_factory):
    binding = LoopBinding()
    with (
        asyncio.Runner(loop_factory=loop_factory) as own,
        asyncio.Runner(loop_factory=loop_factory) as other,
    ):
        own.run(bind(binding, "use it"))
        loop = own.get_loop()

        async def elsewhere():
            return refusal(binding.bind, "use {}", "key")

        async def in_a_thread():
            said = await asyncio.to_thread(refusal, binding.bind, "use it")
            return said, await asyncio.to_thread(asyncio.run, elsewhere())

        said = other.run(elsewhere())
        assert (
            said.startswith("cannot use 'key': bound to <")
            and ", but the running loop is <" in said
            and said.endswith("one loop_scope)")
        )
        assert (
            refusal(binding.bind, "use it")
            == f"cannot use it: bound to {loop!r}, but no event loop is running"
        )
        for said in own.run(in_a_thread()):
            assert said.endswith(
                "but this is another thread; from there only the *_threadsafe methods may be called"
            )
        assert binding.loop is loop
        assert own.run(bind(binding, "use it")) is False


def test_loop_run_by_another_thread_stays_the_same(loop_factory):
    binding, loop = LoopBinding(), loop_factory()
    loop.run_until_complete(bind(binding, "use it"))
    assert in_thread(loop.run_until_complete, bind(binding, "use it")) is False
    loop.close()


# After the loop is closed


def test_idle_object_is_rebound_after_its_loop_closed(loop_factory):
    binding, loops = LoopBinding(), []
    for _ in range(3):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            assert runner.run(bind(binding, "use it")) is True
            assert runner.run(bind(binding, "use it")) is False
            loops.append(runner.get_loop())
        assert binding.loop is loops[-1]
    assert len({*loops}) == 3


def test_clock_is_that_of_the_current_loop():
    binding = LoopBinding()
    for start in (5.0, 7.0):
        with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start=start)) as runner:
            runner.run(bind(binding, "use it"))
            assert binding.time() == start


def test_object_in_use_stays_with_closed_loop(loop_factory):
    binding = LoopBinding()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(bind(binding, "use it"))
        loop = runner.get_loop()

    async def come():
        return refusal(binding.bind, "check {}", "key", 3)

    said = (
        f"cannot check 'key': bound to {loop!r}, but that loop is closed, and 3 wait there for "
        f"ever; use one for each loop"
    )
    with asyncio.Runner(loop_factory=loop_factory) as other:
        assert other.run(come()) == f"{said}, or close it before its loop"
    assert binding.loop is loop
    with asyncio.Runner(loop_factory=loop_factory) as other:
        assert other.run(bind(binding, "check {}", "key", 0)) is True


def test_stopped_loop_keeps_its_objects(loop_factory):
    binding = LoopBinding()
    with (
        asyncio.Runner(loop_factory=loop_factory) as own,
        asyncio.Runner(loop_factory=loop_factory) as other,
    ):
        own.run(bind(binding, "use it"))
        with pytest.raises(WrongLoop, match="but the running loop is"):
            other.run(bind(binding, "use it"))
        assert own.run(bind(binding, "use it")) is False


# The message of the error


def test_value_is_formatted_only_for_an_error():
    binding = LoopBinding()
    Counted.shown = 0
    asyncio.run(bind(binding, "watch {}", Counted()))
    assert Counted.shown == 0
    assert refusal(LoopBinding().bind, "watch {}", Counted()).startswith("cannot watch <counted>: ")
    assert Counted.shown == 1


def test_value_with_raising_repr_is_described_by_type():
    binding = LoopBinding()
    assert asyncio.run(bind(binding, "watch {}", Nameless())) is True
    said = refusal(LoopBinding().bind, "watch {}", Nameless())
    assert said.startswith(
        "cannot watch <Nameless, whose __repr__ raised ZeroDivisionError>: no event loop"
    )


@pytest.mark.parametrize("value", [None, "{}", "{0} {} %s"])
def test_value_is_shown_verbatim_whatever_it_contains(value):
    assert refusal(LoopBinding().bind, "watch {}", value).startswith(
        f"cannot watch {value!r}: no event loop is running"
    )


# The clock


def test_clock_is_system_clock_unless_loop_overrides_time():
    class Slower(asyncio.SelectorEventLoop):
        def time(self):
            return super().time() / 2

    loops = [asyncio.new_event_loop(), Slower(), VirtualTimeLoop(start=3.0)]
    try:
        assert clock_of(loops[0]) is time.monotonic
        assert clock_of(loops[1]) == loops[1].time
        assert clock_of(loops[2])() == 3.0
        loops[0].time = lambda: 42.0
        assert clock_of(loops[0])() == 42.0
    finally:
        for loop in loops:
            loop.close()


def test_the_clock_agrees_with_the_loops_own(loop_factory):
    loop = loop_factory()
    try:
        before = loop.time()
        now = clock_of(loop)()
        assert (
            before <= now + 0.001 and now <= loop.time() + 0.001
        )  # uvloop's clock shows whole milliseconds
    finally:
        loop.close()
