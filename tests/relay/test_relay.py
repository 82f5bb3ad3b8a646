"""`Relay`, on each kind of store: a wait completes wherever the write was made, and forgotten keys
lose no number and no waiter. Failures of servers are in `test_outages`, replies in
`test_deliveries`."""

import asyncio
import gc
import re
import socket
import time
from typing import Any

import pytest
from failing_store import FailingStore
from helpers import Probe, until
from hypothesis import given
from hypothesis import strategies as st
from ports import free_port
from relay_waits import knows, pair, recorded, set_timeout, started
from servers import TIMEOUT, on_both_loops

from purgatory import (
    OperationCancelled,
    OperationTimeout,
    Purgatory,
    PurgatoryClosed,
    RelayUnavailable,
    WrongLoop,
)
from purgatory.relay import Relay
from purgatory.relay._forgetting import SAMPLES, Samples, horizon

# Waits and writes


@on_both_loops
async def test_a_wait_completes_wherever_the_write_was_made(relay):
    async with relay() as here, relay() as there:
        assert here.epoch == there.epoch
        waits = [asyncio.create_task(one.wait("a", 0, TIMEOUT)) for one in (here, there) * 3]
        await until(lambda: here.statistics().watched == there.statistics().watched == 1)
        assert await here.bump("a") == 1
        assert await asyncio.gather(*waits) == [1] * 6
        assert await there.bump("a") == 2
        assert await here.wait("a", 1, TIMEOUT) == 2
        assert await here.version("a") == await there.version("a") == 2
        assert await here.advance("a", 2**52) == 2**52
        assert await there.advance("a", 7) == await here.bump("a") - 1 == 2**52
        waiting = asyncio.create_task(there.wait("a", 2**52 + 1))
        assert await here.bump("a") == await waiting == 2**52 + 2
        assert here.statistics().watched == there.statistics().watched == 0


@on_both_loops
@pytest.mark.parametrize("is_followed", [True, False])
async def test_each_wait_gets_what_there_is(relay, is_followed):
    async with relay() as here, relay() as there:
        assert await there.advance("a", 7) == 7
        waits = (here.wait("a", 7, epoch=here.epoch) for _ in range(is_followed))
        others = [asyncio.create_task(wait) for wait in waits]
        if is_followed:
            await knows(here, "a")
        for timeout in (TIMEOUT, 0, 0.0, -1.0):
            for seen, epoch in ((3, None), (1000, None), (7, "another"), (40, "another")):
                assert await here.wait("a", seen, timeout, epoch=epoch) == 7, (seen, timeout)
        for timeout, within in ((0, ""), (-1.0, ""), (0.3, "within 0.3 s")):
            words = f"'a' did not reach 8 .*{within}: it has 7"
            with pytest.raises(OperationTimeout, match=words):
                await here.wait("a", 7, timeout)
        assert here.statistics().watched == len(others)
        await until(lambda: here.thresholds.statistics().keys == len(others))  # after a second
        assert not any(other.done() for other in others)
        for other in others:
            assert await there.bump("a") == await other == 8


def deafen(relay: Relay) -> None:
    """Has a relay lose all messages about keys."""
    relay._follower.on_message = lambda _: None
    relay._follower.on_hint = lambda _: None


def resync(relay: Relay) -> None:
    relay._follower.resync()
    relay._sync.wake()


async def test_wait_for_unknown_epoch_continues(relay):
    async with relay(resync=15.0) as here, relay() as there:
        assert await there.bump("a") == 1
        deafen(here)
        old = here.epoch
        await there._store.renew(old)
        resync(there)
        await until(lambda: there.epoch != old)
        assert here.epoch == old
        waiting = asyncio.create_task(here.wait("a", 1, epoch=there.epoch))
        await until(lambda: here.epoch != old)
        await knows(here, "a")
        assert not waiting.done()
        del here._follower.on_message, here._follower.on_hint
        assert await there.bump("a") == await waiting == 2
        with pytest.raises(OperationTimeout):
            await here.wait("a", 2, 0.01, epoch=here.epoch)


async def test_first_waits_and_writes_are_batched_per_iteration(tmp_path):
    url = f"file://{tmp_path}"
    async with pair(url) as (here, there):
        reads, writes = (recorded(here._store, name) for name in ("read", "write"))
        waits = [asyncio.create_task(here.wait(f"key{n % 40}", 0, TIMEOUT)) for n in range(400)]
        await until(lambda: bool(reads))
        await asyncio.sleep(0.05)
        assert len(reads) <= 2
        bumps = [*(here.bump("a") for _ in range(5)), here.advance("a", 10)]
        bumps += (here.bump(f"key{n}") for n in range(40))
        assert (await asyncio.gather(*bumps))[:6] == [11, 12, 13, 14, 15, 15]
        [changes] = writes
        assert changes[0] == ("a", 10, 5)
        assert len(changes) == 41
        assert await asyncio.gather(*waits) == [1] * 400
        await until(lambda: there.statistics().received == 41)
        assert here.statistics().sent == 41


async def test_waiting_again_at_once_needs_no_read(tmp_path):
    url = f"file://{tmp_path}"
    async with pair(url) as (here, there):
        seen = await there.bump("a")
        waiting = await started(here, "a", seen)
        reads = recorded(here._store, "read")
        for _ in range(20):
            bumped = await there.bump("a")
            assert await waiting == bumped == seen + 1
            assert here.statistics().watched == 0
            waiting, seen = asyncio.create_task(here.wait("a", bumped)), bumped
        assert not reads
        await there.bump("a")
        await waiting
        await until(lambda: not here._follower.followed)
        assert await here.wait("a", seen, TIMEOUT) == seen + 1
        assert len(reads) == 1


async def test_sent_counts_settling_deliveries(relay):
    async with relay() as here:
        before = here.statistics().sent
        await here.bump("a")
        assert [await here.deliver("a", b"", ttl=TIMEOUT) for _ in range(2)] == [True, False]
        assert here.statistics().sent == before + 2


@pytest.mark.parametrize("call", ["version", "look", "wait"])
async def test_read_version_is_of_the_known_epoch(relay, call):
    async with relay(resync=TIMEOUT) as here, relay() as there:
        assert await there.bump("a") == 1
        deafen(here)
        old = here.epoch
        await there._store.renew(old)
        assert here.epoch == old
        if call == "version":
            assert await here.version("a") == 1
        else:
            timeout = 0.0 if call == "look" else TIMEOUT
            assert await here.wait("a", 1, timeout, epoch="another") == 1
        assert here.epoch != old


@pytest.mark.parametrize("letter", ["ü", "\x01", "a"])
async def test_changes_of_large_keys_arrive_at_once(relay, caplog, letter):
    """They exceed a message of each store."""
    size = 512 // len(letter.encode())
    keys = [f"{number:02}".ljust(size - 2, letter) for number in range(100)]
    async with relay() as here, relay() as there:
        waits = [asyncio.create_task(here.wait(key, 0)) for key in keys]
        await knows(here, *keys)
        assert await asyncio.gather(*(there.bump(key) for key in keys)) == [1] * 100
        assert await asyncio.gather(*waits) == [1] * 100
    assert "not a message" not in caplog.text


# Attached purgatories


@on_both_loops
async def test_a_change_checks_the_key_in_attached_purgatories(relay):
    async with relay() as here, relay() as there, Purgatory() as purgatory:
        here.attach(purgatory)
        here.attach(purgatory)
        operation = Probe(TIMEOUT, name="paid")
        purgatory.try_complete_else_watch(operation, ["a"])
        await there.bump("b")
        operation.ready = True
        await there.bump("a")
        assert await operation == "paid"


async def test_purgatory_watching_nonstring_key_is_not_attached(file_relay):
    here = file_relay()
    async with here, Purgatory("jobs") as purgatory:
        waiting = asyncio.create_task(purgatory.receive(7))
        await until(lambda: purgatory.watched == 1)
        words = r"cannot attach the purgatory 'jobs' .*: its keys must be str, got 7"
        with pytest.raises(TypeError, match=words):
            here.attach(purgatory)
        assert here._attached == []
        waiting.cancel()


async def test_a_purgatory_that_fails_hurts_itself_alone(file_relay, reports):
    class Broken(Purgatory[Any]):
        def check_and_complete(self, key: object) -> int:
            raise ZeroDivisionError

    async with file_relay() as here:
        here.attach(Broken())
        await here.bump("a")
        assert await here.wait("a", 0, TIMEOUT) == 1
    assert isinstance(reports[0]["exception"], ZeroDivisionError)


# Opening and closing


def test_closed_relay_reopens_on_another_loop(run, relay):
    here = relay()

    async def main() -> None:
        async with here, relay() as there:
            before = await here.version("a")
            assert here.statistics().sent == 0
            waiting = await started(here, "a", before)
            assert await there.bump("a") == await waiting == before + 1
        with pytest.raises(PurgatoryClosed):
            await here.bump("a")
        async with here:
            assert here.statistics().watched == 0
            assert await here.bump("a") == before + 2

    run(main)
    run(main)


@on_both_loops
async def test_relay_is_used_while_open_on_its_loop(file_relay):
    here = file_relay()

    def calls() -> list[Any]:
        versions = [here.wait("a", 0), here.bump("a"), here.advance("a", 1), here.version("a")]
        return [*versions, here.receive("a"), here.deliver("a", b"", ttl=1)]

    assert " not connected watched=0" in repr(here)
    unopened = r"cannot .* 'a': the relay at file:///.* is not open: use it in `async with`"
    for call in calls():
        with pytest.raises(RuntimeError, match=unopened):
            await call
    with pytest.raises(RuntimeError, match=r"not known: the relay is not open: use it in"):
        here.epoch  # noqa: B018
    async with here:
        with pytest.raises(RuntimeError, match=r"open already"):
            await here.__aenter__()
        for call in (here.bump("a"), here.receive("a")):
            with pytest.raises(WrongLoop, match=r"cannot (bump|receive) 'a'"):
                await asyncio.to_thread(asyncio.run, call)
        with pytest.raises(WrongLoop, match=r"cannot close the relay"):
            await asyncio.to_thread(asyncio.run, here.aclose())
        assert await here.bump("a") == 1
        assert re.fullmatch(r"<Relay 'file:///.*' connected watched=0>", repr(here))
        waits = [asyncio.create_task(call) for call in (here.wait("a", 1), here.receive("a"))]
        await until(lambda: here.statistics().watched == 2)
    outcomes = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OperationCancelled] * 2
    await here.aclose()
    assert " closed watched=0" in repr(here)
    for call in calls():
        with pytest.raises(PurgatoryClosed, match=r"'a': the relay at file:///.* is closed"):
            await call
    gc.collect()


@on_both_loops
@pytest.mark.parametrize("interrupted", [False, True])
async def test_cancelled_close_still_ends_operations_and_connections(tmp_path, interrupted):
    hanging, slow = ["hangs"] * 9, ["slow"]
    store: Any = FailingStore(tmp_path, read=["", *hanging], write=hanging, close=slow, listen=slow)
    relay = Relay(store, timeout=30)
    await relay.__aenter__()
    task = asyncio.create_task
    calls = [task(relay.version("a")), task(relay.bump("a")), task(relay.wait("a", 0))]
    await until(lambda: store.calls["read"] > 1 and store.calls["write"] == 1)
    calls += [task(relay.version("b")), task(relay.bump("b"))]
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(relay.aclose())
    await asyncio.sleep(0)
    if interrupted:
        closing.cancel()
    await asyncio.wait([closing])
    assert store.calls["close"] == 1 and closing.cancelled() is interrupted
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OperationCancelled] * 5


def test_wait_with_closed_loop_stays_silent(tmp_path):
    store: Any = FailingStore(tmp_path, read=["", *["hangs"] * 9])

    async def begin() -> Any:
        relay = Relay(store)
        await relay.__aenter__()
        waiting = relay.wait("a", 0)
        waiting.send(None)
        return waiting

    loop = asyncio.new_event_loop()
    waiting = loop.run_until_complete(begin())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.run_until_complete(store.close())
    loop.close()
    waiting.close()


async def test_unanswered_write_is_reported_as_perhaps_made(tmp_path):
    """An earlier error, after which a write has succeeded, is not its reason."""
    store: Any = FailingStore(tmp_path, write=["before", "", "hangs"])
    async with Relay(store, timeout=TIMEOUT) as relay:
        assert await relay.bump("a") == 1
        await set_timeout(relay, 2.0)  # the write has to begin
        with pytest.raises(RelayUnavailable, match=r"2.0 s, and it was perhaps written$"):
            await relay.bump("a")


async def test_only_its_own_probe_ends_the_time_limit(tmp_path):
    store: Any = FailingStore(tmp_path, listen=[], send=[])
    async with Relay(store, timeout=TIMEOUT, resync=0.2) as relay:
        await until(lambda: store.calls["send"])
        await until(lambda: relay._sync._listen_timeout.when() is None)
        _, on_message = store.last["listen"]
        for number in ("", "x", "-1", "²", "9" * 5_000):
            on_message(f'"{relay._sync._id}:{number}"')
        assert relay.statistics().is_connected


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("scheme", ["redis", "postgresql", "nats"])
async def test_unavailable_store_is_reported_within_timeout(monkeypatch, scheme, answers):
    monkeypatch.setenv("PGUSER", "anyone")  # in a container this user may have no name
    port, match = free_port(), "cannot open the relay: tried for 2.0 s: .* .*[Cc]onnect"
    if answers:  # a connection, and nothing more
        silent = socket.create_server(("127.0.0.1", 0))
        port, match = silent.getsockname()[1], "gave no answer within 2.0 s"
    relay = Relay(f"{scheme}://user:secret@127.0.0.1:{port}/0", timeout=2.0)  # imports the client
    begun = time.monotonic()
    with pytest.raises(RelayUnavailable, match=match) as raised:
        async with relay:
            pass
    assert 2.0 <= time.monotonic() - begun < TIMEOUT
    assert f"{scheme}://127.0.0.1:{port}/0" in str(raised.value)
    assert "secret" not in str(raised.value)
    if answers:
        silent.close()


async def test_relay_opens_once_unavailable_store_returns(tmp_path):
    (tmp_path / "app").write_text("in the way")

    async def bump() -> int:
        async with Relay(f"file://{tmp_path}/app", timeout=30) as relay:
            return await relay.bump("a")

    store: Any = FailingStore(tmp_path, listen=["before"] * 10_000)
    with pytest.raises(RelayUnavailable, match="nothing was written"):
        await Relay(store, timeout=0.5).__aenter__()
    assert store.calls["listen"] < 100  # with pauses
    with pytest.raises(RelayUnavailable, match=r"Not a directory|File exists"):
        await Relay(f"file://{tmp_path}/app/folder", timeout=0.2).__aenter__()
    bumping = asyncio.create_task(bump())
    done, _ = await asyncio.wait([bumping], timeout=0.2)
    assert not done
    (tmp_path / "app").unlink()
    assert await bumping == 1


# Forgetting


@given(
    steps=st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(0, 5), st.booleans()), max_size=60)
)
def test_old_keys_are_forgotten_within_an_eighth(steps):
    seconds, now, position = 40.0, 0.0, 0
    written = {0: 0.0}  # each position, and the time at which it was reached
    samples: Samples = []
    looks = [-1000.0]
    for passes, writes, is_looked in steps:
        now += passes
        for _ in range(writes):
            position += 1
            written[position] = now
        if not is_looked:
            continue
        samples, last = horizon(samples, now, position, seconds)
        assert len(samples) <= SAMPLES + 2
        old = [at for at, time in written.items() if time <= now - seconds]
        assert last <= max(old, default=-1)
        sampled = [look for look in looks if look <= now - seconds]
        if sampled[1:]:  # positions written `seconds / SAMPLES` before the last such look
            before = sampled[-1] - seconds / SAMPLES
            expected = [at for at, time in written.items() if time <= before]
            assert last >= max(expected, default=-1)
        looks.append(now)


def test_clock_set_back_forgets_nothing_early():
    samples, _ = horizon([], 1000.0, 10, 40.0)
    samples, last = horizon(samples, 100.0, 20, 40.0)
    assert (samples, last) == ([(100.0, 20)], -1)
    assert horizon(samples, 105.0, 25, 40.0)[0] == [(100.0, 20), (105.0, 25)]
    assert horizon(samples, 140.0, 30, 40.0)[1] == 20


async def test_wait_on_forgotten_key_ends_at_next_write(relay):
    async with relay() as here, relay() as there:
        assert await there.advance("a", 5) == 5
        assert await there.advance("b", 40) == 40
        waiting, other = (
            asyncio.create_task(here.wait(key, n)) for key, n in (("a", 5), ("c", 40))
        )
        await knows(here, "a")
        await there.forget("a")
        await there.forget("b")
        keys = ((there, "a"), (here, "b"), (here, "new"))
        assert [await one.version(key) for one, key in keys] == [40] * 3
        assert not waiting.done()
        assert await here.wait("new", 0) == 40
        assert await there.bump("a") == await waiting == 41
        if not other.done():  # as it is if it has read its key after the floor had risen
            assert await there.bump("c") == await other == 41
        assert here.statistics().epochs == there.statistics().epochs == 1


async def test_relay_forgets_what_nobody_writes(relay):
    async with relay(forget_after=1.0) as here, relay() as there:
        assert await there.advance("a", 7) == 7
        waiting = asyncio.create_task(here.wait("a", 7))
        while (await there._store.read((), 0)).versions:
            await asyncio.sleep(0.02)
        await until(lambda: here.statistics().is_connected)
        assert not waiting.done()
        assert await there.version("never") == 7
        assert await there.bump("a") == await waiting == 8
