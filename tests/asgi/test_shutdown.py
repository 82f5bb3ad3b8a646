"""`purgatory.asgi._open`: our callback is called at a signal, and so is the handler that was
there."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from functools import partial
from itertools import permutations
from typing import Any

import pytest
from helpers import iterations

from purgatory.asgi._open import SignalChain

NUMBER = signal.SIGUSR1


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """The calls of handlers, with the server's handler installed."""
    calls: list[str] = []
    before = signal.signal(NUMBER, lambda number, frame: calls.append("server"))
    yield calls
    signal.signal(NUMBER, before)


async def until_called(calls: list[str], count: int) -> None:
    while len(calls) < count:
        await asyncio.sleep(0)


async def test_callback_and_previous_handler_are_called(calls):
    chain = SignalChain([NUMBER], lambda: calls.append("ours"))
    chain.install(asyncio.get_running_loop())
    signal.raise_signal(NUMBER)
    await until_called(calls, 2)
    assert sorted(calls) == ["ours", "server"]
    chain.remove()
    signal.raise_signal(NUMBER)
    await until_called(calls, 3)
    assert sorted(calls) == ["ours", "server", "server"]


async def test_handlers_of_the_loop_are_called_as_well():
    calls: list[str] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(NUMBER, calls.append, "server")
    chain = SignalChain([NUMBER], lambda: calls.append("ours"))
    chain.install(loop)
    signal.raise_signal(NUMBER)
    await until_called(calls, 2)
    assert sorted(calls) == ["ours", "server"]
    chain.remove()
    signal.raise_signal(NUMBER)
    await until_called(calls, 3)
    assert calls.count("server") == 2
    loop.remove_signal_handler(NUMBER)


async def test_a_signal_that_nobody_handles_is_left_alone():
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    SignalChain([signal.SIGUSR2], lambda: None).install(asyncio.get_running_loop())
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


async def test_handler_set_later_is_kept(calls):
    chain = SignalChain([NUMBER], lambda: calls.append("ours"))
    chain.install(asyncio.get_running_loop())
    signal.signal(NUMBER, lambda number, frame: calls.append("newer"))
    chain.remove()
    signal.raise_signal(NUMBER)
    await until_called(calls, 1)
    assert calls == ["newer"]


async def test_installing_again_wraps_once(calls):
    chain = SignalChain([NUMBER], lambda: calls.append("ours"))
    for _ in range(3):
        chain.install(asyncio.get_running_loop())
    signal.raise_signal(NUMBER)
    await until_called(calls, 2)
    await iterations(20)
    assert sorted(calls) == ["ours", "server"]
    chain.remove()


@pytest.mark.parametrize("leaving", list(permutations("abc")), ids="".join)
@pytest.mark.parametrize("is_wrapped", [False, True])
async def test_chains_are_removed_in_any_order(calls, leaving, is_wrapped):
    server = signal.getsignal(NUMBER)
    chains = {name: SignalChain([NUMBER], partial(calls.append, name)) for name in "abc"}
    for chain in chains.values():
        chain.install(asyncio.get_running_loop())
    if is_wrapped:
        ours = signal.getsignal(NUMBER)
        assert callable(ours)
        signal.signal(NUMBER, lambda number, frame: [calls.append("another"), ours(number, frame)])
    for name in leaving:
        calls.clear()
        signal.raise_signal(NUMBER)
        await iterations(20)
        assert sorted(calls) == sorted([*chains, "server", *["another"] * is_wrapped])
        chains.pop(name).remove()
    assert is_wrapped or signal.getsignal(NUMBER) is server
    calls.clear()
    signal.raise_signal(NUMBER)
    await iterations(20)
    assert calls == ["another"] * is_wrapped + ["server"]


async def test_removed_chains_leave_no_links(calls):
    loop = asyncio.get_running_loop()
    before, after = (SignalChain([NUMBER], lambda: None) for _ in range(2))
    before.install(loop)
    for _ in range(5_000):  # as many links as Python could not call through
        after.install(loop)
        before.remove()
        before, after = after, SignalChain([NUMBER], lambda: None)
    signal.raise_signal(NUMBER)
    assert calls == ["server"]
    before.remove()


async def test_attributes_come_from_the_previous_handler():
    class Server:
        should_exit = False

        def handle_exit(self, number: int, frame: object) -> None:
            self.should_exit = True

    server = Server()
    before = signal.signal(NUMBER, server.handle_exit)
    chains = [SignalChain([NUMBER], lambda: None) for _ in range(2)]
    for chain in chains:
        chain.install(asyncio.get_running_loop())
    handler: Any = signal.getsignal(NUMBER)
    assert handler.__self__ is server  # by which sse-starlette finds uvicorn
    assert not hasattr(handler, "something else")
    signal.raise_signal(NUMBER)
    assert server.should_exit
    for chain in chains:
        chain.remove()
    signal.signal(NUMBER, before)


def test_in_another_thread_nothing_is_installed(calls):
    before = signal.getsignal(NUMBER)

    async def main() -> None:
        SignalChain([NUMBER], lambda: None).install(asyncio.get_running_loop())
        assert signal.getsignal(NUMBER) is before

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    thread.join()
    assert signal.getsignal(NUMBER) is before


def test_closed_loop_leaves_only_the_previous_handler(calls):
    chain = SignalChain([NUMBER], lambda: calls.append("ours"))

    async def main() -> None:
        chain.install(asyncio.get_running_loop())

    asyncio.run(main())
    signal.raise_signal(NUMBER)
    assert calls == ["server"]
    chain.remove()
