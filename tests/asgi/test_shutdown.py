"""`purgatory.asgi._open`: our callback is called at a signal, and so is the handler that was
there."""

import asyncio
import signal
from collections.abc import Iterator
from functools import partial
from itertools import permutations
from typing import Any

import pytest
from helpers import in_thread, iterations

from purgatory.asgi._open import SignalChain

NUMBER = signal.SIGUSR1


class Server:
    """Whose handler a chain wraps."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def handle_exit(self, number: int, frame: object) -> None:
        self.calls.append("server")

    async def calls_at_signal(self) -> list[str]:
        self.calls.clear()
        signal.raise_signal(NUMBER)
        while "server" not in self.calls:  # a loop's own handlers run on the loop
            await iterations(1)
        await iterations(20)
        return sorted(self.calls)

    def chain(self, name: str = "ours") -> SignalChain:
        return SignalChain([NUMBER], partial(self.calls.append, name))


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    before = signal.signal(NUMBER, server.handle_exit)
    yield server
    signal.signal(NUMBER, before)


async def test_handlers_of_the_loop_are_called_as_well():
    server, loop = Server(), asyncio.get_running_loop()
    loop.add_signal_handler(NUMBER, server.calls.append, "server")
    chain = server.chain()
    chain.install(loop)
    assert await server.calls_at_signal() == ["ours", "server"]
    chain.remove()
    assert await server.calls_at_signal() == ["server"]
    loop.remove_signal_handler(NUMBER)


async def test_unhandled_signal_is_left_alone():
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    SignalChain([signal.SIGUSR2], lambda: None).install(asyncio.get_running_loop())
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


@pytest.mark.parametrize("leaving", list(permutations("abc")), ids="".join)
@pytest.mark.parametrize("another", ["none", "around", "instead"])
async def test_chains_are_removed_in_any_order(server, leaving, another):
    chains = {name: server.chain(name) for name in "abc"}
    for chain in chains.values():
        for _ in range(2):  # installing again wraps once
            chain.install(asyncio.get_running_loop())
    ours: Any = signal.getsignal(NUMBER)
    assert ours.__self__ is server  # by which uvicorn is found
    assert not hasattr(ours, "something else")
    if another != "none":
        last = ours if another == "around" else server.handle_exit
        signal.signal(NUMBER, lambda *args: [server.calls.append("another"), last(*args)])
    others = ["another"] * (another != "none")
    for name in leaving:
        called = [] if another == "instead" else chains
        assert await server.calls_at_signal() == sorted([*called, "server", *others])
        chains.pop(name).remove()
    assert others or signal.getsignal(NUMBER) == server.handle_exit
    assert await server.calls_at_signal() == [*others, "server"]


async def test_removed_chains_leave_no_links(server):
    loop = asyncio.get_running_loop()
    before, after = server.chain(), server.chain()
    before.install(loop)
    for _ in range(5_000):  # as many links as Python could not call through
        after.install(loop)
        before.remove()
        before, after = after, server.chain()
    signal.raise_signal(NUMBER)
    assert server.calls == ["server"]
    before.remove()


@pytest.mark.parametrize("is_other_thread", [True, False])
def test_other_thread_and_closed_loop_call_previous_handler(server, is_other_thread):
    chain = server.chain()

    async def main() -> None:
        chain.install(asyncio.get_running_loop())

    if is_other_thread:
        in_thread(lambda: asyncio.run(main()))
        assert signal.getsignal(NUMBER) == server.handle_exit
    else:
        asyncio.run(main())
    signal.raise_signal(NUMBER)
    assert server.calls == ["server"]
    chain.remove()
