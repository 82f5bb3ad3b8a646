"""`purgatory.relay.blocking.Relay`, for code without an event loop."""

import asyncio
import multiprocessing
import re
import threading
import time
from typing import Any

import pytest
from helpers import until
from ports import free_port
from relay_waits import started
from servers import TIMEOUT

from purgatory import PurgatoryClosed, RelayUnavailable
from purgatory import relay as asynchronous
from purgatory.relay import blocking


async def test_write_without_loop_answers_waits_on_a_loop(url, prefix):
    def write() -> list[int]:
        with blocking.Relay(url, prefix=prefix, timeout=TIMEOUT) as relay:
            versions = [relay.version("a"), relay.bump("a"), relay.bump("a")]
            versions += [relay.advance("a", 7), relay.advance("a", 3)]
            relay.forget("a")
            return [*versions, relay.version("a"), relay.version("b"), relay.bump("b")]

    async with asynchronous.Relay(url, prefix=prefix, timeout=TIMEOUT) as relay:
        waiting = await started(relay, "a", 0)
        assert await asyncio.to_thread(write) == [0, 1, 2, 7, 7, 7, 7, 8]
        assert await waiting >= 1


def test_closed_relay_reopens_and_leaves_no_thread(url, prefix):
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


def test_unavailable_store_is_reported_within_timeout():
    match = r"cannot open the relay: tried for 0.2 s: cannot use .*127.0.0.1"
    with pytest.raises(RelayUnavailable, match=match) as raised:
        blocking.Relay(f"redis://user:secret@127.0.0.1:{free_port()}/0", timeout=0.2).__enter__()
    assert "secret" not in str(raised.value)


async def test_writes_from_any_thread_count_once(url, prefix, relay):
    async with relay() as here:
        receiving = asyncio.create_task(here.receive("a", TIMEOUT))
        await until(lambda: here.statistics().watched == 1)
        with blocking.Relay(url, prefix=prefix, timeout=TIMEOUT, max_value=10) as there:
            calls = (
                asyncio.to_thread(there.deliver, "a", b"%d" % n, ttl=2 * TIMEOUT) for n in range(8)
            )
            bumps = (asyncio.to_thread(there.bump, "a") for _ in range(40))
            answers = await asyncio.gather(*calls)
            assert sorted(await asyncio.gather(*bumps)) == [*range(1, 41)]
            assert sum(answers) == 1
            assert await receiving == b"%d" % answers.index(True)
            with pytest.raises(ValueError, match="at most 10 bytes, got 11 for 'b'"):
                there.deliver("b", b"x" * 11, ttl=1)
        with pytest.raises(PurgatoryClosed, match="cannot deliver to 'b'"):
            there.deliver("b", b"", ttl=1)


def in_child(relay: blocking.Relay, results: Any) -> None:
    try:
        relay.bump("a")
    except RuntimeError as error:
        relay.close()
        results.put(str(error))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_blocking_relay_entered_before_a_fork_is_refused(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with blocking.Relay(f"file://{tmp_path}") as relay:
        assert relay.bump("a") == 1
        child = context.Process(target=in_child, args=(relay, results))
        child.start()
        message = results.get(timeout=TIMEOUT)
        child.join(TIMEOUT)
        assert child.exitcode == 0
        assert re.search(
            r"was entered in process \d+, and this is \d+; enter one after the fork", message
        )
        assert relay.bump("a") == 2
