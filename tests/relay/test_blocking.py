"""`purgatory.relay.blocking.Relay`, for code without an event loop."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from loops import Runner
from ports import free_port
from relay_waits import knows
from servers import TIMEOUT

from purgatory import PurgatoryClosed, RelayUnavailable
from purgatory import relay as asynchronous
from purgatory.relay import blocking

prefixes = count(1)


@pytest.fixture
def prefix() -> str:
    return f"test{next(prefixes)}"


def test_write_without_loop_answers_waits_on_a_loop(run: Runner, url: str, prefix: str) -> None:
    def write() -> list[int]:
        with blocking.Relay(url, prefix=prefix, timeout=TIMEOUT) as relay:
            versions = [
                relay.version("a"),
                relay.bump("a"),
                relay.bump("a"),
                relay.advance("a", 7),
                relay.advance("a", 3),
            ]
            relay.forget("a")
            return [*versions, relay.version("a"), relay.version("b"), relay.bump("b")]

    async def main() -> None:
        async with asynchronous.Relay(url, prefix=prefix, timeout=TIMEOUT) as relay:
            waiting = asyncio.create_task(relay.wait("a", 0))
            await knows(relay, "a")
            assert await asyncio.to_thread(write) == [0, 1, 2, 7, 7, 7, 7, 8]
            assert await waiting >= 1

    run(main)


def test_threads_sharing_a_relay_get_distinct_numbers(url: str, prefix: str) -> None:
    with (
        blocking.Relay(url, prefix=prefix, timeout=TIMEOUT) as relay,
        ThreadPoolExecutor(8) as threads,
    ):
        assert sorted(threads.map(lambda _: relay.bump("a"), range(80))) == list(range(1, 81))


def test_closed_relay_reopens_and_leaves_no_thread(url: str, prefix: str) -> None:
    threads = threading.active_count()
    relay = blocking.Relay(url, prefix=prefix, timeout=TIMEOUT)
    unopened = r"cannot bump 'a': the relay at .* is not open: use it in `with`"
    with pytest.raises(RuntimeError, match=unopened) as raised:
        relay.bump("a")
    assert not isinstance(raised.value, (RelayUnavailable, PurgatoryClosed))
    for version in (1, 2):
        with relay:
            with pytest.raises(RuntimeError, match="is open already"):
                relay.__enter__()
            assert relay.bump("a") == version
        relay.close()
    with pytest.raises(PurgatoryClosed, match="is closed: use it in `with`"):
        relay.version("a")
    deadline = time.monotonic() + TIMEOUT
    while threading.active_count() > threads:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_unavailable_store_is_reported_within_timeout(scheme: str) -> None:
    with (
        pytest.raises(
            RelayUnavailable,
            match=r"cannot open the relay: tried for 0.2 s: cannot use .*127.0.0.1",
        ) as raised,
        blocking.Relay(f"{scheme}://user:secret@127.0.0.1:{free_port()}/0", timeout=0.2),
    ):
        pass
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda relay: relay.bump(7), TypeError),
        (lambda relay: relay.version("ä" * 257), ValueError),
        (lambda relay: relay.advance("a", -1), ValueError),
        (lambda relay: relay.forget(b"a"), TypeError),
    ],
)
def test_bad_input_is_refused(
    tmp_path: Path, call: Callable[[blocking.Relay], object], error: type[Exception]
) -> None:
    with blocking.Relay(f"file://{tmp_path}") as relay, pytest.raises(error):
        call(relay)
    with pytest.raises(ValueError, match="timeout must be"):
        blocking.Relay(f"file://{tmp_path}", timeout=0)
