"""`purgatory.relay.blocking.Relay`, for code without an event loop."""

import asyncio
import multiprocessing
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from failing_store import FailingStore
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


def test_task_left_by_a_store_ends_with_loop(tmp_path):
    store: Any = FailingStore(tmp_path)
    close, ended = store.close, []

    async def linger() -> None:
        try:
            await asyncio.sleep(TIMEOUT)
        finally:
            ended.append(await asyncio.sleep(0, "after an iteration"))

    async def leave() -> None:
        store.left = asyncio.create_task(linger())
        await asyncio.sleep(0)
        await close()

    store.close = leave
    with blocking.Relay(store, timeout=TIMEOUT):
        pass
    assert ended


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
    with blocking.Relay(f"file://{tmp_path}", timeout=TIMEOUT) as relay:
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


# Relays that are left open

LEFT_OPEN = """
import os, sys, threading
{first}
from purgatory.relay.blocking import Relay

relays = [Relay(sys.argv[1], prefix=sys.argv[2] + end, timeout=60) for end in ("a", "b")]
for relay in relays:
    relay.__enter__()
    print(relay.bump("a"), flush=True)
{last}
"""


def left_open(url: str, prefix: str, last: str = "", first: str = "") -> list[str]:
    """The lines of a program that opens two relays, and ends without closing them."""
    program = LEFT_OPEN.format(first=first, last=last)
    command = [sys.executable, "-c", program, url, prefix]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


FORK = """
relays[0].close()
child = os.fork()
if not child:
    with Relay(sys.argv[1], prefix="child", timeout=60) as relay:
        print(relay.bump("a"), flush=True)
    relay.__enter__()
    sys.exit()
print(os.waitpid(child, 0)[1], flush=True)
"""
ENDS = {
    "exit": "",
    "os._exit": "sys.stdout.flush(); os._exit(0)",
    "daemon thread": """
def keep_bumping():
    try:
        while True:
            relays[0].bump("b")
    except Exception:
        pass  # the exit has closed it

threading.Thread(target=keep_bumping, daemon=True).start()
""",
}


@pytest.mark.parametrize("last", ENDS.values(), ids=ENDS)
def test_process_with_open_relays_ends(url, prefix, last):
    assert left_open(url, prefix, last) == ["1", "1"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_with_open_relays_ends(tmp_path):
    assert left_open(f"file://{tmp_path}", "fork", FORK) == ["1", "1", "1", "0"]


@pytest.mark.slow
def test_relays_share_one_loop_under_gevent(url, prefix):
    first = "from gevent import monkey; monkey.patch_all()"
    last = """
import gevent
calls = [gevent.spawn(relay.bump, f"b{n}") for relay in relays for n in range(5)]
print(*(call.get(timeout=60) for call in calls))
"""
    assert left_open(url, prefix, last, first) == ["1"] * 12


@pytest.mark.slow
def test_foreign_loop_under_gevent_is_named(tmp_path):
    program = f"""if True:
        from gevent import monkey; monkey.patch_all()
        import asyncio
        from purgatory.relay.blocking import Relay
        async def main():
            with Relay("file://{tmp_path}"):
                pass
        asyncio.run(main())
    """
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert "use either blocking relays or asyncio" in done.stderr


GUNICORN = """
from purgatory.relay.blocking import Relay

bind, workers, graceful_timeout = "127.0.0.1:{port}", 2, 60
relays = []

def post_fork(server, worker):
    relays.append(Relay({url!r}, timeout=60).__enter__())

def post_worker_init(worker):  # from now on it handles signals itself
    worker.log.info("Ready")

def app(environ, start_response):
    start_response("200 OK", [])
    return [b"%d" % relays[0].bump("a")]
"""


@pytest.mark.slow
def test_gunicorn_workers_with_open_relays_end(tmp_path):
    port = free_port()
    (tmp_path / "gunicorn_conf.py").write_text(GUNICORN.format(port=port, url=f"file://{tmp_path}"))
    command = [sys.executable, "-m", "gunicorn", "-c", "gunicorn_conf.py", "gunicorn_conf:app"]
    server = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        ready = 0
        while ready < 2:
            ready += "Ready" in server.stderr.readline()
        begun = time.monotonic()
        server.send_signal(signal.SIGTERM)
        _, log = server.communicate(timeout=2 * TIMEOUT)
        assert server.returncode == 0 and "SIGKILL" not in log
        assert time.monotonic() - begun < 50.0  # workers that hang are killed after 60 s
    finally:
        server.kill()
