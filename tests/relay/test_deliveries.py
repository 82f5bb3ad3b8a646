"""`Relay.deliver` and `receive`, on each kind of store: a reply reaches its waiter, in any
process. Failures of servers are in `test_outages`."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from asgi_requests import Request
from loops import Runner
from relay_waits import until
from servers import TIMEOUT, on_both_loops, postgres_server, redis_server

from purgatory import (
    OperationCancelled,
    OperationTimeout,
    PurgatoryClosed,
    RelayUnavailable,
    WrongLoop,
)
from purgatory.asgi import Ending, LongPolls, Outcome
from purgatory.relay import ChangeMessage, ReadResult, Relay, blocking
from purgatory.relay._store import NotWritten, Refused, open_store

prefixes = count(1)

FOREVER = 2 * TIMEOUT  # seconds; longer than any test


@pytest.fixture
def prefix() -> str:
    return f"test{next(prefixes)}"


@pytest.fixture
def relay(url: str, prefix: str) -> Callable[..., Relay]:
    """Makes relays on one store, which is empty."""
    return lambda **options: Relay(url, prefix=prefix, timeout=TIMEOUT, **options)


@pytest.fixture
def file_relay(tmp_path: Path) -> Callable[..., Relay]:
    return lambda **options: Relay(f"file://{tmp_path}/app", **{"timeout": TIMEOUT, **options})


async def waits(relay: Relay, count: int = 1) -> None:
    """Waits until `count` keys are received here, and their first reads are over."""
    await until(
        lambda: len(relay._receiver.waiters) == count and relay._receiver.calls.task is None
    )


@on_both_loops
def test_reply_reaches_all_who_receive_it_anywhere(
    run: Runner, relay: Callable[..., Relay]
) -> None:
    async def main() -> None:
        async with relay() as here, relay() as there:
            receives = [
                asyncio.create_task(each.receive("a", TIMEOUT))
                for each in (here, there)
                for _ in range(3)
            ]
            await waits(here)
            await waits(there)
            assert await here.deliver("a", b"paid\0", ttl=FOREVER) is True
            assert await asyncio.gather(*receives) == [b"paid\0"] * 6
            assert await there.deliver("a", b"refused", ttl=FOREVER) is False
            for each in (here, there):
                assert await each.receive("a", TIMEOUT) == b"paid\0"
                assert await each.receive("a", 0) == b"paid\0"
                assert not each._receiver.waiters and not each._replies.watched
                assert await each.version("a") == 0

    run(main)


@on_both_loops
def test_reply_is_gone_after_its_ttl(run: Runner, relay: Callable[..., Relay]) -> None:
    async def main() -> None:
        async with relay() as here, relay() as there:
            assert await here.deliver("a", b"first", ttl=0.6)
            begun = time.monotonic()
            assert await there.receive("a", 0) == b"first"
            while not await there.deliver("a", b"second", ttl=FOREVER):
                await asyncio.sleep(0.01)
            assert time.monotonic() >= begun + 0.55
            assert await here.receive("a", TIMEOUT) == b"second"
            await there.deliver("b", b"", ttl=0.001)
            await asyncio.sleep(0.1)
            with pytest.raises(OperationTimeout, match=r"'b'.*nothing was delivered"):
                await here.receive("b", 0)

    run(main)


def test_receive_without_reply_times_out(run: Runner, relay: Callable[..., Relay]) -> None:
    async def main() -> None:
        async with relay() as here:
            begun = time.monotonic()
            with pytest.raises(TimeoutError):
                await here.receive("a", 0.1)
            assert time.monotonic() >= begun + 0.1
            for timeout in (0, -1):
                with pytest.raises(OperationTimeout):
                    await here.receive("a", timeout)
            assert not here._receiver.waiters and not here._replies.watched

    run(main)


def test_poll_receives_a_reply_from_the_relay(
    run: Runner, file_relay: Callable[..., Relay]
) -> None:
    async def main() -> None:
        polls, relay = LongPolls(signals=(), max_wait=TIMEOUT), file_relay()

        async def poll(wait: float) -> Outcome[bytes]:
            outcomes: list[Outcome[bytes]] = []

            async def handler(scope: Any, receive: Any, send: Any) -> None:
                outcomes.append(await polls.poll(scope).receive(relay, "a"))
                await outcomes[0].send(send)

            await Request(polls.middleware(handler), f"wait={wait}".encode()).done()
            return outcomes[0]

        with pytest.raises(RuntimeError, match="use it in `async with`"):
            await poll(1)
        async with relay:
            assert (await poll(0)).ending is Ending.DEADLINE
            waiting = asyncio.create_task(poll(TIMEOUT))
            await waits(relay)
            await relay.deliver("a", b"paid", ttl=FOREVER)
            for outcome in (await waiting, await poll(0), await poll(TIMEOUT)):
                assert (outcome.ending, outcome.value) == (Ending.SATISFIED, b"paid")
        refused = await poll(1)
        assert (refused.ending, refused.status) == (Ending.STOPPING, 503)

    run(main)


def test_cancelled_receive_leaves_nothing_behind(run: Runner, relay: Callable[..., Relay]) -> None:
    async def main() -> None:
        async with relay() as here, relay() as there:
            for iterations in range(8):
                task = asyncio.create_task(here.receive("a"))
                for _ in range(iterations):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert not here._receiver.waiters and not here._replies.watched
            await until(lambda: here._receiver.calls.task is None)
            assert not here._receiver.calls._queue
            assert await there.deliver("a", b"value", ttl=FOREVER)
            assert await here.receive("a", TIMEOUT) == b"value"

    run(main)


def test_resync_recovers_lost_message(
    run: Runner, relay: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with relay(resync=0.3) as here, relay() as there:
            on_settled = here._receiver.on_settled
            monkeypatch.setattr(
                here._receiver, "on_settled", lambda keys=(): None if keys else on_settled()
            )
            receives = [asyncio.create_task(here.receive(f"a{n}", TIMEOUT)) for n in range(150)]
            await waits(here, 150)
            await asyncio.gather(
                *(there.deliver(f"a{n}", b"%d" % n, ttl=FOREVER) for n in range(150))
            )
            assert await asyncio.gather(*receives) == [b"%d" % n for n in range(150)]

    run(main)


def test_large_replies_arrive_whole_and_oversized_are_refused(
    run: Runner, relay: Callable[..., Relay], url: str
) -> None:
    async def main() -> None:
        async with relay() as here, relay(max_value=3_000_000) as there:
            size = 1_000_000 if url.startswith("nats") else 1 << 20
            values = {f"a{number}": bytes([number]) * size for number in range(7)}
            receives = [asyncio.create_task(there.receive(key, TIMEOUT)) for key in values]
            for key, value in values.items():
                assert await here.deliver(key, value, ttl=FOREVER)
            assert await asyncio.gather(*receives) == [*values.values()]
            with pytest.raises(ValueError, match=r"at most 1048576 bytes, got 1048577 for 'b'"):
                await here.deliver("b", bytes((1 << 20) + 1), ttl=FOREVER)
            if url.startswith("nats"):
                with pytest.raises(ValueError, match="2000000 bytes to 'b': the server at nats"):
                    await there.deliver("b", bytes(2_000_000), ttl=FOREVER)
            else:
                assert await there.deliver("c", bytes(2_000_000), ttl=FOREVER)
                assert len(await here.receive("c", TIMEOUT)) == 2_000_000
            with pytest.raises(OperationTimeout):
                await here.receive("b", 0)

    run(main)


@pytest.mark.parametrize(
    ("key", "value", "ttl", "error", "match"),
    [
        ("a", "text", 1, TypeError, "must be bytes, got 'text'"),
        ("a", bytearray(b"x"), 1, TypeError, "must be bytes"),
        ("a", None, 1, TypeError, "must be bytes, got None"),
        ("a", b"x", 0, ValueError, "ttl must be a positive number of seconds, at most .*, got 0"),
        ("a", b"x", -1, ValueError, "got -1"),
        ("a", b"x", float("nan"), ValueError, "got nan"),
        ("a", b"x", float("inf"), ValueError, "got inf"),
        ("a", b"x", "1", TypeError, "ttl must be a number of seconds, got '1'"),
        ("a", b"x", True, TypeError, "got True"),
        (7, b"x", 1, TypeError, "a key of type str, got 7"),
        ("a" * 513, b"x", 1, ValueError, "at most 512 bytes"),
    ],
)
def test_delivery_out_of_bounds_is_refused_without_effect(
    run: Runner,
    file_relay: Callable[..., Relay],
    key: Any,
    value: Any,
    ttl: Any,
    error: type[Exception],
    match: str,
) -> None:
    async def main() -> None:
        async with file_relay() as relay:
            with pytest.raises(error, match=match):
                await relay.deliver(key, value, ttl=ttl)
            with pytest.raises(OperationTimeout):
                await relay.receive("a", 0)

    run(main)


@pytest.mark.parametrize("max_value", [0, -1, 1.5, True, "1"])
def test_bound_of_values_must_be_a_positive_integer(tmp_path: Path, max_value: Any) -> None:
    for kind in (Relay, blocking.Relay):
        with pytest.raises((ValueError, TypeError), match="max_value"):
            kind(f"file://{tmp_path}", max_value=max_value)


def test_closed_relay_ends_receives_and_refuses_more(
    run: Runner, file_relay: Callable[..., Relay]
) -> None:
    async def main() -> None:
        relay = file_relay()
        for call in (relay.receive("a"), relay.deliver("a", b"", ttl=1)):
            with pytest.raises(RuntimeError, match="not open: use it in `async with`"):
                await call
        async with relay:
            receiving = asyncio.create_task(relay.receive("a"))
            await waits(relay)
        with pytest.raises(OperationCancelled):
            await receiving
        for call in (relay.receive("a"), relay.deliver("a", b"", ttl=1)):
            with pytest.raises(PurgatoryClosed):
                await call
        async with relay:
            assert await relay.deliver("a", b"again", ttl=FOREVER)
            assert await relay.receive("a", 0) == b"again"
            with pytest.raises(WrongLoop):
                await asyncio.to_thread(lambda: asyncio.run(relay.receive("a")))

    run(main)


def test_deliveries_of_one_iteration_are_few_writes(
    run: Runner, file_relay: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with file_relay() as relay:
            store: Any = relay._store
            batches: list[int] = []
            original = store.settle

            async def settle(deliveries: Any, connection: Any = None) -> Any:
                batches.append(len(deliveries))
                return await original(deliveries, connection)

            monkeypatch.setattr(store, "settle", settle)
            calls = [relay.deliver(f"a{n % 250}", b"%d" % n, ttl=FOREVER) for n in range(500)]
            assert sum(await asyncio.gather(*calls)) == 250
            assert max(batches) == 100 and sum(batches) == 500
            batches.clear()
            calls = [relay.deliver(f"b{n}", bytes(600_000), ttl=FOREVER) for n in range(4)]
            assert all(await asyncio.gather(*calls))
            assert batches == [2, 2]

    run(main)


# Lost answers


class Flaky:
    """A store whose `settle` fails as told: before or after it has settled."""

    def __init__(self, store: Any, failures: list[str]) -> None:
        self._store, self.failures = store, failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def settle(self, deliveries: Any, connection: Any = None) -> Any:
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "before":
            raise NotWritten("nothing was written")
        if failure == "refused":
            raise Refused("no permission")
        answer = await self._store.settle(deliveries, connection)
        if failure == "after":
            raise RelayUnavailable("the answer was lost")
        if failure == "hangs":
            await asyncio.sleep(FOREVER)
        return answer


@pytest.mark.parametrize(
    "failures", [["before"], ["after"], ["after", "after", "before"], ["before", "after"]]
)
def test_delivery_whose_answer_was_lost_is_true_once(
    run: Runner, tmp_path: Path, failures: list[str]
) -> None:
    url = f"file://{tmp_path}"

    async def main() -> None:
        store: Any = Flaky(open_store(url, "purgatory"), list(failures))
        async with Relay(store, timeout=TIMEOUT) as flaky, Relay(url) as other:
            assert await flaky.deliver("a", b"first", ttl=FOREVER) is True
            assert await other.deliver("a", b"second", ttl=FOREVER) is False
            store.failures = list(failures)
            assert await flaky.deliver("a", b"third", ttl=FOREVER) is False
            assert await other.receive("a", 0) == b"first"

    run(main)


def test_unanswered_delivery_is_reported_as_perhaps_made(run: Runner, tmp_path: Path) -> None:
    async def main() -> None:
        store: Any = Flaky(open_store(f"file://{tmp_path}", "purgatory"), [])
        async with Relay(store, timeout=0.2) as relay:
            for failure, match in (
                ("before", r"gave no answer within 0\.2 s: nothing was written$"),
                ("after", "the answer was lost, and it was perhaps delivered$"),
                ("hangs", "perhaps delivered$"),
            ):
                store.failures = [failure] * 100
                with pytest.raises(RelayUnavailable, match=match):
                    await relay.deliver(failure, b"", ttl=FOREVER)
            store.failures = ["refused"]
            with pytest.raises(RelayUnavailable, match=r"'b': no permission$"):
                await relay.deliver("b", b"", ttl=FOREVER)

    run(main)


class Minimal:
    """A store without deliveries, as others may have written one."""

    address = "minimal://"

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def listen(self, on_subscribed: Any, on_message: Any) -> None:
        on_subscribed()
        await asyncio.sleep(FOREVER)

    async def read(self, keys: Any, since: Any) -> ReadResult:
        return ReadResult("e", 0, dict.fromkeys(keys, 0))

    async def write(self, changes: Any, connection: Any = None) -> ChangeMessage:
        raise NotImplementedError

    async def forget(self, keys: Any) -> None: ...

    async def forget_unwritten(self, seconds: float) -> bool:
        return False

    async def renew(self, epoch: str) -> None: ...

    async def send(self, payload: bytes) -> None: ...


def test_store_without_deliveries_says_so(run: Runner) -> None:
    async def main() -> None:
        store: Any = Minimal()
        async with Relay(store) as relay:
            with pytest.raises(TypeError, match=r"deliver to 'a': .* takes no deliveries"):
                await relay.deliver("a", b"", ttl=1)
            with pytest.raises(TypeError, match=r"receive 'a': .* takes no deliveries"):
                await relay.receive("a")

    run(main)


# Several processes


def deliver_all(url: str, prefix: str, name: str, keys: int, results: Any) -> None:
    with blocking.Relay(url, prefix=prefix, timeout=TIMEOUT) as relay:
        won = [
            number
            for number in range(keys)
            if relay.deliver(f"key{number}", f"{name} {number}".encode(), ttl=FOREVER)
        ]
    results.put((name, won))


def test_each_key_is_settled_by_exactly_one_process(
    run: Runner, url: str, prefix: str, relay: Callable[..., Relay]
) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=deliver_all, args=(url, prefix, name, 50, results))
        for name in ("one", "two", "three")
    ]

    async def main() -> None:
        async with relay() as here:
            receives = [asyncio.create_task(here.receive(f"key{n}", TIMEOUT)) for n in range(50)]
            await waits(here, 50)
            for process in processes:
                process.start()
            received = await asyncio.gather(*receives)
            winners = {}
            for _ in processes:
                name, won = await asyncio.to_thread(results.get, True, TIMEOUT)
                for number in won:
                    assert number not in winners, f"key{number} was settled twice"
                    winners[number] = name
            assert received == [f"{winners[number]} {number}".encode() for number in range(50)]

    run(main)
    for process in processes:
        process.join(TIMEOUT)
        assert process.exitcode == 0


def test_blocking_relay_delivers_from_any_thread(
    run: Runner, url: str, prefix: str, relay: Callable[..., Relay]
) -> None:
    async def main() -> None:
        async with relay() as here:
            receiving = asyncio.create_task(here.receive("a", TIMEOUT))
            await waits(here)
            with blocking.Relay(url, prefix=prefix, timeout=TIMEOUT, max_value=10) as there:
                answers = await asyncio.gather(
                    *(
                        asyncio.to_thread(there.deliver, "a", b"%d" % n, ttl=FOREVER)
                        for n in range(8)
                    )
                )
                assert sum(answers) == 1
                assert await receiving == b"%d" % answers.index(True)
                with pytest.raises(ValueError, match="at most 10 bytes, got 11 for 'b'"):
                    there.deliver("b", b"x" * 11, ttl=1)
            with pytest.raises(PurgatoryClosed, match="cannot deliver to 'b'"):
                there.deliver("b", b"", ttl=1)

    run(main)


# Behaviour of single stores


def test_expired_replies_leave_the_folder_as_it_was(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from purgatory.relay import _client as client

    monkeypatch.setattr(client, "MAX_SWEEP_INTERVAL", 0.2)
    monkeypatch.setattr(client, "MIN_SWEEP_INTERVAL", 0.05)

    async def main() -> None:
        async with Relay(f"file://{tmp_path}", timeout=TIMEOUT) as relay:
            calls = (relay.deliver(f"a{n}", bytes(500_000), ttl=3.0) for n in range(60))
            assert all(await asyncio.gather(*calls))
            database: Any = relay._store._database  # type: ignore[attr-defined]
            assert database.execute("PRAGMA page_count").fetchone()[0] > 2_000
            left = "SELECT count(*) FROM settled"
            await until(lambda: database.execute(left).fetchone() == (0,))
            await until(lambda: database.execute("PRAGMA page_count").fetchone()[0] < 1_200)

    run(main)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Any]:
    with postgres_server() as server:
        server.run("CREATE ROLE app LOGIN; CREATE ROLE mallory LOGIN")
        yield server


@pytest.mark.slow
def test_delivery_in_a_transaction_counts_when_committed(
    run: Runner, postgres: Any, prefix: str
) -> None:
    import asyncpg

    async def main() -> None:
        connection = await asyncpg.connect(postgres.url)
        async with (
            Relay(postgres.url, prefix=prefix, timeout=TIMEOUT) as here,
            Relay(postgres.url, prefix=prefix, timeout=2.0) as there,
        ):
            receiving = asyncio.create_task(there.receive("a", TIMEOUT))
            await waits(there)
            transaction = connection.transaction()
            await transaction.start()
            assert await here.deliver("a", b"lost", ttl=FOREVER, connection=connection)
            locked = "another transaction holds it locked"
            with pytest.raises(RelayUnavailable, match=locked):
                await there.deliver("a", b"other", ttl=FOREVER)
            assert await there.deliver("b", b"free", ttl=FOREVER)
            assert not receiving.done()
            await transaction.rollback()
            with pytest.raises(OperationTimeout):
                await there.receive("a", 0)
            async with connection.transaction():
                assert await here.deliver("a", b"kept", ttl=FOREVER, connection=connection)
                delivering = asyncio.create_task(here.deliver("a", b"late", ttl=FOREVER))
                await asyncio.sleep(0.2)
                assert not receiving.done() and not delivering.done()
            assert await receiving == b"kept"
            assert await delivering is False
        await connection.close()

    run(main)


@pytest.mark.slow
def test_locked_key_holds_no_other_delivery_up(run: Runner, postgres: Any, prefix: str) -> None:
    import asyncpg

    async def main() -> None:
        connection = await asyncpg.connect(postgres.url)
        async with Relay(postgres.url, prefix=prefix, timeout=TIMEOUT) as relay:
            transaction = connection.transaction()
            await transaction.start()
            assert await relay.deliver("a", b"", ttl=FOREVER, connection=connection)
            locked = asyncio.create_task(relay.deliver("a", b"mine", ttl=FOREVER))
            others = [relay.deliver(f"b{n}", b"", ttl=FOREVER) for n in range(50)]
            assert all(await asyncio.gather(*others))
            assert not locked.done()
            await transaction.rollback()
            assert await locked is True
        await connection.close()

    run(main)


@pytest.mark.slow
def test_role_without_rights_to_replies_is_told_when_opening(
    run: Runner, postgres: Any, prefix: str
) -> None:
    async def main() -> None:
        async with Relay(postgres.url, prefix=prefix):
            pass
        rights = "SELECT, INSERT, UPDATE, DELETE"
        postgres.run(f"GRANT {rights} ON {prefix}_versions TO app")
        url = postgres.url.replace("tester", "app")
        match = f"role app has no right to {rights} on its table .{prefix}_settled"
        with pytest.raises(RelayUnavailable, match=match):
            await Relay(url, prefix=prefix, timeout=TIMEOUT).__aenter__()
        postgres.run(f"GRANT {rights} ON {prefix}_settled TO app")
        async with Relay(url, prefix=prefix, timeout=TIMEOUT) as relay:
            assert await relay.bump("a") == 1
            assert await relay.deliver("a", b"value", ttl=FOREVER)

    run(main)


@pytest.mark.slow
def test_table_of_replies_of_another_role_is_refused(
    run: Runner, postgres: Any, prefix: str
) -> None:
    postgres.run("GRANT ALL ON SCHEMA public TO PUBLIC")
    columns = "key bytea PRIMARY KEY, token bytea, expires timestamptz, value bytea"
    table = f"{prefix}_settled"
    postgres.run(f"CREATE TABLE {table} ({columns}); GRANT ALL ON {table} TO PUBLIC", "mallory")

    async def main() -> None:
        url = postgres.url.replace("tester", "app")
        with pytest.raises(ValueError, match="belongs to mallory"):
            await Relay(url, prefix=prefix, timeout=TIMEOUT).__aenter__()
        assert postgres.run(f"SELECT count(*) FROM {table}") == "0\n"

    run(main)


@pytest.mark.slow
@pytest.mark.parametrize("right", ["-publish", "-set", "-getrange"])
def test_redis_delivery_that_is_refused_settles_nothing(
    run: Runner, tmp_path: Path, right: str
) -> None:
    async def main() -> None:
        with redis_server(tmp_path) as server:
            server.ask("ACL", "SETUSER", "app", "on", "nopass", "allkeys", "allchannels", "+@all")
            url = server.url.replace("redis://", "redis://app:x@")
            async with Relay(server.url) as other, Relay(url, timeout=TIMEOUT) as relay:
                assert await other.deliver("taken", b"", ttl=FOREVER)
                receiving = asyncio.create_task(other.receive("a", TIMEOUT))
                await waits(other)
                server.ask("ACL", "SETUSER", "app", right)
                key = "taken" if right == "-getrange" else "a"
                with pytest.raises(RelayUnavailable) as caught:
                    await relay.deliver(key, b"value", ttl=FOREVER)
                assert "perhaps" not in str(caught.value)
                assert not receiving.done()
                server.ask("ACL", "SETUSER", "app", "+@all")
                assert await relay.deliver("a", b"value", ttl=FOREVER)
                assert await receiving == b"value"

    run(main)


@pytest.mark.slow
def test_foreign_redis_value_is_left_alone(run: Runner, tmp_path: Path) -> None:
    async def main() -> None:
        with redis_server(tmp_path) as server:
            server.ask("LPUSH", "{purgatory}:settled:a", "mine")
            async with Relay(server.url, timeout=TIMEOUT) as relay:
                for call in (relay.deliver("a", b"", ttl=1), relay.receive("a", TIMEOUT)):
                    with pytest.raises(ValueError, match="was left alone"):
                        await call
                assert server.ask("LLEN", "{purgatory}:settled:a") == b":1\r\n"

    run(main)


@pytest.mark.slow
def test_foreign_redis_value_hurts_no_neighbour(run: Runner, tmp_path: Path) -> None:
    keys = [f"k{number}" for number in range(20)]

    async def main() -> None:
        with redis_server(tmp_path) as server:
            server.ask("LPUSH", "{purgatory}:settled:k7", "mine")
            async with Relay(server.url, timeout=TIMEOUT) as relay:
                receives = [relay.receive(key, TIMEOUT) for key in keys]
                deliveries = [relay.deliver(key, key.encode(), ttl=60) for key in keys]
                for calls, good in ((deliveries, True), (receives, None)):
                    results = await asyncio.gather(*calls, return_exceptions=True)
                    for key, result in zip(keys, results, strict=True):
                        if key == "k7":
                            assert isinstance(result, ValueError)
                        else:
                            assert result == (good or key.encode())

    run(main)
