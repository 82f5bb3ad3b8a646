"""`purgatory.asgi._shutdown`: a signal is heard, and its own handler all the same."""

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest
from helpers import turns

from purgatory.asgi._shutdown import SignalChain

NUMBER = signal.SIGUSR1


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """What was called, with the server's handler installed."""
    calls: list[str] = []
    before = signal.signal(NUMBER, lambda number, frame: calls.append("server"))
    yield calls
    signal.signal(NUMBER, before)


async def until_heard(calls: list[str], count: int) -> None:
    while len(calls) < count:
        await asyncio.sleep(0)


def test_the_callback_is_called_and_so_is_the_handler_that_was_there(run, heard):
    async def main():
        chain = SignalChain([NUMBER], lambda: heard.append("ours"))
        chain.install(asyncio.get_running_loop())
        signal.raise_signal(NUMBER)
        await until_heard(heard, 2)
        assert sorted(heard) == ["ours", "server"]
        chain.remove()
        signal.raise_signal(NUMBER)
        await until_heard(heard, 3)
        assert sorted(heard) == ["ours", "server", "server"]

    run(main)


def test_handlers_of_the_loop_are_called_as_well(run):
    async def main():
        calls: list[str] = []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(NUMBER, calls.append, "server")
        chain = SignalChain([NUMBER], lambda: calls.append("ours"))
        chain.install(loop)
        signal.raise_signal(NUMBER)
        await until_heard(calls, 2)
        assert sorted(calls) == ["ours", "server"]
        chain.remove()
        signal.raise_signal(NUMBER)
        await until_heard(calls, 3)
        assert calls.count("server") == 2
        loop.remove_signal_handler(NUMBER)

    run(main)


def test_a_signal_that_nobody_handles_is_left_alone(run):
    async def main():
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
        SignalChain([signal.SIGUSR2], lambda: None).install(asyncio.get_running_loop())
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL

    run(main)


def test_a_handler_that_was_set_since_is_not_taken_away(run, heard):
    async def main():
        chain = SignalChain([NUMBER], lambda: heard.append("ours"))
        chain.install(asyncio.get_running_loop())
        signal.signal(NUMBER, lambda number, frame: heard.append("newer"))
        chain.remove()
        signal.raise_signal(NUMBER)
        await until_heard(heard, 1)
        assert heard == ["newer"]

    run(main)


def test_installing_again_wraps_once(run, heard):
    async def main():
        chain = SignalChain([NUMBER], lambda: heard.append("ours"))
        for _ in range(3):
            chain.install(asyncio.get_running_loop())
        signal.raise_signal(NUMBER)
        await until_heard(heard, 2)
        await turns(20)
        assert sorted(heard) == ["ours", "server"]
        chain.remove()

    run(main)


def test_in_another_thread_nothing_is_installed(heard):
    before = signal.getsignal(NUMBER)

    async def main() -> None:
        SignalChain([NUMBER], lambda: None).install(asyncio.get_running_loop())
        assert signal.getsignal(NUMBER) is before

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    thread.join()
    assert signal.getsignal(NUMBER) is before


def test_after_its_loop_is_closed_only_the_handler_that_was_there_is_called(heard):
    chain = SignalChain([NUMBER], lambda: heard.append("ours"))

    async def main() -> None:
        chain.install(asyncio.get_running_loop())

    asyncio.run(main())
    signal.raise_signal(NUMBER)
    assert heard == ["server"]
    chain.remove()
