"""`Relay`, on each kind of store: a wait completes wherever the write was made. Failures of servers
are in `test_outages`."""

import asyncio
import gc
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from loops import Runner
from ports import free_port
from relay_waits import knows, until
from servers import TIMEOUT, on_both_loops, postgres_server, redis_server

from purgatory import (
    DelayedOperation,
    OperationCancelled,
    OperationTimeout,
    Purgatory,
    PurgatoryClosed,
    RelayUnavailable,
    WrongLoop,
)
from purgatory.relay import Change, ChangeMessage, ReadResult, Relay
from purgatory.relay._store import open_store

prefixes = count(1)


@pytest.fixture
def relay(url: str) -> Callable[..., Relay]:
    """Makes relays on one store, which is empty."""
    prefix = f"test{next(prefixes)}"
    return lambda **options: Relay(url, prefix=prefix, timeout=TIMEOUT, **options)


@pytest.fixture
def file_relay(tmp_path: Path) -> Callable[..., Relay]:
    return lambda **options: Relay(f"file://{tmp_path}/app", timeout=TIMEOUT, **options)


@on_both_loops
def test_a_wait_completes_wherever_the_write_was_made(
    run: Runner, relay: Callable[..., Relay]
) -> None:
    async def main() -> None:
        async with relay() as here, relay() as there:
            assert here.epoch == there.epoch
            waits = [
                asyncio.create_task(one.wait("a", 0, TIMEOUT))
                for one in (here, there)
                for _ in range(3)
            ]
            await until(lambda: here.statistics().watched == there.statistics().watched == 1)
            assert await here.bump("a") == 1
            assert await asyncio.gather(*waits) == [1] * 6
            assert await there.bump("a") == 2
            assert await here.wait("a", 1, TIMEOUT) == 2
            assert await here.version("a") == await there.version("a") == 2
            assert here.statistics().watched == there.statistics().watched == 0

    run(main)


@on_both_loops
def test_existing_version_is_answered_at_once(run: Runner, relay: Callable[..., Relay]) -> None:
    async def main() -> None:
        async with relay() as here, relay() as there:
            assert await there.advance("a", 41) == 41
            assert await there.advance("a", 7) == 41
            assert await here.wait("a", 7, TIMEOUT) == 41

    run(main)


@on_both_loops
def test_wait_accepts_any_version_bump_returns(run: Runner, relay: Callable[..., Relay]) -> None:
    async def main() -> None:
        async with relay() as here:
            assert await here.advance("a", 2**52) == 2**52
            assert await here.bump("a") == 2**52 + 1
            waiting = asyncio.create_task(here.wait("a", 2**52 + 1))
            assert await here.bump("a") == 2**52 + 2
            assert await waiting == 2**52 + 2

    run(main)


def test_each_bump_gets_a_number_of_its_own(run: Runner, relay: Callable[..., Relay]) -> None:
    async def main() -> None:
        async with relay() as here, relay() as there:
            numbers = await asyncio.gather(*(one.bump("a") for one in (here, there) * 50))
            assert sorted(numbers) == list(range(1, 101))
            assert await here.version("a") == 100

    run(main)


@on_both_loops
def test_timed_out_wait_names_the_current_version(run: Runner, relay: Callable[..., Relay]) -> None:
    async def main() -> None:
        async with relay() as here:
            await here.advance("a", 3)
            other = asyncio.create_task(here.wait("a", 3))
            await knows(here, "a")
            with pytest.raises(
                OperationTimeout, match=r"'a' did not reach 4 within 0.3 s: it has 3"
            ):
                await here.wait("a", 3, 0.3)
            other.cancel()
            await asyncio.wait([other])
            assert here.statistics().watched == 0

    run(main)


@on_both_loops
def test_a_change_checks_the_key_in_attached_purgatories(
    run: Runner, relay: Callable[..., Relay]
) -> None:
    class Paid(DelayedOperation[str]):
        def try_complete(self) -> bool:
            return bool(paid) and self.force_complete()

        def on_complete(self) -> str:
            return "paid"

    async def main() -> None:
        async with relay() as here, relay() as there, Purgatory() as purgatory:
            here.attach(purgatory)
            here.attach(purgatory)
            operation = Paid(TIMEOUT)
            purgatory.try_complete_else_watch(operation, ["a"])
            await there.bump("b")
            paid.append(True)
            await there.bump("a")
            assert await operation == "paid"

    paid: list[bool] = []
    run(main)


def test_purgatory_watching_nonstring_key_is_not_attached(
    run: Runner, file_relay: Callable[..., Relay]
) -> None:
    async def main() -> None:
        here = file_relay()
        async with here, Purgatory("jobs") as purgatory:
            waiting = asyncio.create_task(purgatory.receive(7))
            await until(lambda: purgatory.watched == 1)
            with pytest.raises(
                TypeError,
                match=r"cannot attach the purgatory 'jobs' .*: its keys must be str, got 7",
            ):
                here.attach(purgatory)
            assert here._attached == []
            waiting.cancel()

    run(main)


def test_closed_relay_reopens_on_another_loop(run: Runner, relay: Callable[..., Relay]) -> None:
    here = relay()
    purgatory: list[Purgatory[Any]] = []

    async def main() -> None:
        async with here, relay() as there:
            before = await here.version("a")
            assert here.statistics().sent == 0
            purgatory[:] = [Purgatory()]
            here._attached.clear()
            here.attach(purgatory[0])
            with pytest.raises(RuntimeError, match="is open already"):
                await here.__aenter__()
            waiting = asyncio.create_task(here.wait("a", before))
            receiving = asyncio.create_task(purgatory[0].wait_for(waiting.done, ["a"]))
            await knows(here, "a")
            assert await there.bump("a") == before + 1
            assert await waiting == before + 1
            await here.bump("a")
            assert await receiving
        with pytest.raises(PurgatoryClosed):
            await here.bump("a")
        async with here:
            assert await here.version("a") == before + 2
            assert here.statistics().watched == 0
            assert await here.bump("b") > 0

    run(main)
    run(main)


def test_foreign_epoch_returns_current_version_at_once(
    run: Runner, relay: Callable[..., Relay]
) -> None:
    async def main() -> None:
        async with relay() as here, relay() as there:
            assert await there.advance("a", 7) == 7
            old = here.epoch
            assert await here.wait("a", 3, epoch="other") == 7
            assert await here.wait("a", 7, epoch="other") == 7
            assert await here.wait("a", 40, TIMEOUT, epoch="other") == 7
            waiting = asyncio.create_task(here.wait("a", 7, epoch=old))
            await knows(here, "a")
            assert await there.bump("a") == 8
            assert await waiting == 8
            with pytest.raises(TypeError, match="epoch must be a str, got 7"):
                await here.wait("a", 7, epoch=7)  # type: ignore[arg-type]

    run(main)


def test_wait_for_unknown_epoch_continues(run: Runner, relay: Callable[..., Relay]) -> None:
    async def main() -> None:
        async with relay() as here, relay() as there:
            assert await there.bump("a") == 1
            here._follower.on_message = lambda _: None  # type: ignore[method-assign]
            here._follower.on_hint = lambda _: None  # type: ignore[method-assign]
            old = here.epoch
            await there._store.renew(old)
            there._follower.resync()
            there._sync.wake()  # type: ignore[union-attr]
            await until(lambda: there.epoch != old)
            assert here.epoch == old
            waiting = asyncio.create_task(here.wait("a", 1, epoch=there.epoch))
            await until(lambda: here.epoch != old)
            await knows(here, "a")
            assert not waiting.done()
            del here._follower.on_message, here._follower.on_hint
            assert await there.bump("a") == 2
            assert await waiting == 2
            with pytest.raises(OperationTimeout):
                await here.wait("a", 2, 0.01, epoch=here.epoch)

    run(main)


def test_a_purgatory_that_fails_hurts_itself_alone(
    run: Runner, file_relay: Callable[..., Relay]
) -> None:
    reports: list[dict[str, Any]] = []

    class Broken(Purgatory[Any]):  # type: ignore[misc]
        def check_and_complete(self, key: object) -> int:
            raise ZeroDivisionError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        async with file_relay() as here:
            here.attach(Broken())
            await here.bump("a")
            assert await here.wait("a", 0, TIMEOUT) == 1

    run(main)
    assert isinstance(reports[0]["exception"], ZeroDivisionError)


@on_both_loops
def test_closing_ends_all_waits(run: Runner, file_relay: Callable[..., Relay]) -> None:
    async def main() -> None:
        async with file_relay() as here:
            waiting = asyncio.create_task(here.wait("a", 0))
            await until(lambda: here.statistics().watched == 1)
        with pytest.raises(OperationCancelled):
            await waiting
        await here.aclose()
        for call in (here.wait("a", 0), here.bump("a"), here.advance("a", 1), here.version("a")):
            with pytest.raises(PurgatoryClosed, match=r"'a': the relay at file:///.* is closed"):
                await call

    run(main)
    gc.collect()


class SlowStore:
    """Answers only the first read, and is slow to stop listening."""

    address = "slow://"

    def __init__(self) -> None:
        self.is_closed = False
        self.reads = self.writes = 0
        self.on_message: Callable[[bytes | str], None] | None = None

    async def open(self) -> None: ...

    async def close(self) -> None:
        await asyncio.sleep(0.01)
        self.is_closed = True

    async def listen(
        self, on_subscribed: Callable[[], None], on_message: Callable[[bytes | str], None]
    ) -> None:
        self.on_message = on_message
        on_subscribed()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)

    async def read(self, keys: Any, since: int | None) -> ReadResult:
        self.reads += 1
        if self.reads > 1:
            await asyncio.sleep(60)
        return ReadResult("e", 0, {})

    async def write(self, changes: Any, connection: Any = None) -> ChangeMessage:
        self.writes += 1
        await asyncio.sleep(60)
        raise AssertionError

    async def renew(self, epoch: str) -> None: ...

    async def send(self, payload: bytes) -> None: ...


@pytest.mark.parametrize("name", ["resync", "timeout", "forget_after"])
def test_duration_from_environment_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a number of seconds, not '15'"):
        Relay(f"file://{tmp_path}", **{name: "15"})  # type: ignore[arg-type]


@on_both_loops
@pytest.mark.parametrize("interrupted", [False, True])
def test_cancelled_close_still_ends_operations_and_connections(
    run: Runner, interrupted: bool
) -> None:
    async def main() -> None:
        store = SlowStore()
        relay = Relay(store, timeout=30)
        await relay.__aenter__()
        calls = [
            asyncio.create_task(call)
            for call in (relay.version("a"), relay.bump("a"), relay.wait("a", 0))
        ]
        await until(lambda: store.reads > 1 and store.writes == 1)
        calls += [asyncio.create_task(call) for call in (relay.version("b"), relay.bump("b"))]
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(relay.aclose())
        await asyncio.sleep(0)
        if interrupted:
            closing.cancel()
        await asyncio.wait([closing])
        assert store.is_closed and closing.cancelled() is interrupted
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [OperationCancelled] * 5

    run(main)


def test_wait_with_closed_loop_stays_silent() -> None:
    async def begin() -> Any:
        relay = Relay(SlowStore())
        await relay.__aenter__()
        waiting = relay.wait("a", 0)
        waiting.send(None)
        return waiting

    loop = asyncio.new_event_loop()
    waiting = loop.run_until_complete(begin())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    waiting.close()


def test_a_made_up_probe_changes_nothing(run: Runner) -> None:
    async def main() -> None:
        store = SlowStore()
        async with Relay(store) as relay:
            assert store.on_message is not None and relay._sync is not None
            for number in ("", "x", "-1", "²", "9" * 5_000):
                store.on_message(f'"{relay._sync._id}:{number}"')
            assert relay.statistics().is_connected

    run(main)


@on_both_loops
def test_relay_refuses_use_on_another_loop(run: Runner, file_relay: Callable[..., Relay]) -> None:
    async def main() -> None:
        here = file_relay()
        with pytest.raises(
            RuntimeError,
            match=r"cannot bump 'a': the relay at file:///.* is not open: use it in `async with`",
        ):
            await here.bump("a")
        with pytest.raises(RuntimeError, match=r"not known: the relay is not open: use it in"):
            here.epoch  # noqa: B018
        async with here:
            with pytest.raises(RuntimeError, match=r"open already"):
                await here.__aenter__()
            with pytest.raises(WrongLoop, match=r"cannot bump 'a'"):
                await asyncio.to_thread(asyncio.run, here.bump("a"))
            with pytest.raises(WrongLoop, match=r"cannot close the relay"):
                await asyncio.to_thread(asyncio.run, here.aclose())
            assert await here.bump("a") == 1

    run(main)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda relay: relay.bump(7), TypeError, "expected a key of type str, got 7"),
        (lambda relay: relay.wait(b"a", 0), TypeError, "expected a key of type str, got b'a'"),
        (lambda relay: relay.version("ä" * 257), ValueError, "at most 512 bytes, got 514"),
        (lambda relay: relay.bump("\ud800"), ValueError, "cannot encode the key"),
        (
            lambda relay: relay.advance("a", -1),
            ValueError,
            r"version must be from 0 to 2\*\*52, got -1",
        ),
        (
            lambda relay: relay.advance("a", 2**52 + 1),
            ValueError,
            r"version must be from 0 to 2\*\*52",
        ),
        (lambda relay: relay.advance("a", 1.0), TypeError, "version must be an integer, got 1.0"),
        (lambda relay: relay.advance("a", True), TypeError, "version must be an integer, got True"),
        (lambda relay: relay.wait("a", "1"), TypeError, "seen must be an integer, got '1'"),
        (lambda relay: relay.wait("a", -1), ValueError, "seen must be from 0"),
        (lambda relay: relay.wait("a", 2**53 + 1), ValueError, r"seen must be from 0 to 2\*\*53"),
        (lambda relay: relay.wait("a", 0, float("nan")), ValueError, "NaN"),
        (lambda relay: relay.bump("a", connection=object()), TypeError, "takes no connection"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(
    run: Runner,
    file_relay: Callable[..., Relay],
    call: Callable[[Relay], Any],
    error: type[Exception],
    message: str,
) -> None:
    async def main() -> None:
        async with file_relay() as here:
            with pytest.raises(error, match=message):
                await call(here)
            assert await here.version("a") == 0
            assert here.statistics().watched == 0

    run(main)


@pytest.mark.parametrize(
    ("store", "options", "error", "message"),
    [
        (
            "mysql://user:secret@host/db",
            {},
            ValueError,
            "'mysql://host/db': the address must begin with file://",
        ),
        ("nonsense", {}, ValueError, "must begin with file://"),
        (
            "user:secret@host:6379/0",
            {},
            ValueError,
            "'host:6379/0': the address must begin with file://",
        ),
        (
            "redis://user:of/secret@host/0",
            {},
            ValueError,
            "cannot use 'redis://host/0': the port must be a number, and",
        ),
        (
            "redis://user:12/secret@host/0",
            {},
            ValueError,
            "user and password must be written with %2F for /",
        ),
        (
            "postgresql://user:of?secret@host/db",
            {},
            ValueError,
            "cannot use 'postgresql://host/db'",
        ),
        (
            "postgresql://user:of#secret@host/db",
            {},
            ValueError,
            "cannot use 'postgresql://host/db'",
        ),
        ("postgresql://host:secret/db", {}, ValueError, "the port must be a number"),
        ("file://user:secret@/app", {}, ValueError, "file:///folder, with three slashes"),
        ("file://app", {}, ValueError, "file:///folder, with three slashes"),
        ("file:///", {}, ValueError, "file:///folder"),
        (
            7,
            {},
            TypeError,
            "store must be an address or have the methods of purgatory.relay.Store, got 7",
        ),
        ("file:///tmp", {"resync": 0}, ValueError, "resync must be a positive"),
        ("file:///tmp", {"timeout": float("inf")}, ValueError, "timeout must be a positive"),
        ("file:///tmp", {"prefix": "a-b"}, ValueError, "prefix must consist of"),
    ],
)
def test_a_bad_address_or_setting_is_refused(
    store: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        Relay(store, **options)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_unreachable_store_is_reported_without_its_password(run: Runner, scheme: str) -> None:
    port = free_port()

    async def main() -> None:
        begun = time.monotonic()
        refused = rf"cannot open the relay: tried for 0.5 s: cannot use {scheme}://.*127.0.0.1:{port}/0: .*[Cc]onnect"
        with pytest.raises(RelayUnavailable, match=refused) as raised:
            async with Relay(f"{scheme}://user:secret@127.0.0.1:{port}/0", timeout=0.5):
                pass
        assert 0.5 <= time.monotonic() - begun < TIMEOUT
        assert "secret" not in str(raised.value)

    run(main)


def test_relay_opens_once_unavailable_store_returns(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "app").write_text("in the way")

    async def main() -> None:
        async def bump() -> int:
            async with Relay(f"file://{tmp_path}/app", timeout=30) as relay:
                return await relay.bump("a")

        bumping = asyncio.create_task(bump())
        done, _ = await asyncio.wait([bumping], timeout=0.2)
        assert not done
        (tmp_path / "app").unlink()
        assert await bumping == 1

    run(main)


def test_silent_store_is_reported_within_timeout(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGUSER", "anyone")  # in a container this user may have no name

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            for scheme in ("redis", "postgresql"):
                with pytest.raises(
                    RelayUnavailable,
                    match=f"{scheme}://127.0.0.1:{port}/0 gave no answer within 0.3 s",
                ):
                    async with Relay(f"{scheme}://127.0.0.1:{port}/0", timeout=0.3):
                        pass

    run(main)


def test_a_folder_that_cannot_be_made_is_reported(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def main() -> None:
        with pytest.raises(RelayUnavailable, match=r"Not a directory|File exists"):
            async with Relay(f"file://{tmp_path}/file/app", timeout=0.2):
                pass

    run(main)


def test_foreign_files_in_a_folder_are_refused(run: Runner, tmp_path: Path) -> None:
    path = open_store(f"file://{tmp_path}", "purgatory")._path
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE accounts (name TEXT)")

    async def main() -> None:
        with pytest.raises(ValueError, match=r"not a relay's database, and was left alone"):
            async with Relay(f"file://{tmp_path}"):
                pass
        assert theirs.execute("SELECT name FROM sqlite_schema").fetchall() == [("accounts",)]
        theirs.close()
        path.write_bytes(b"a text that is no database" * 100)
        with pytest.raises(ValueError, match=r"not a database"):
            async with Relay(f"file://{tmp_path}"):
                pass
        assert path.read_bytes() == b"a text that is no database" * 100

    run(main)


@pytest.mark.slow
def test_foreign_keys_in_redis_are_refused(run: Runner, tmp_path: Path) -> None:
    async def main() -> None:
        with redis_server(tmp_path) as server:
            for command in (
                ("SET", "{purgatory}:versions", "x"),
                ("SET", "{purgatory}:order", "x"),
                ("HSET", "{purgatory}:versions", "name", "x"),
                ("ZADD", "{purgatory}:order", "1", "x"),
            ):
                server.ask("FLUSHALL")
                server.ask(*command)
                before = server.ask("DUMP", command[1])
                with pytest.raises(ValueError, match=r"it is not a relay's, and was left alone"):
                    async with Relay(server.url):
                        pass
                assert server.ask("DUMP", command[1]) == before
                assert server.ask("DBSIZE") == b":1\r\n"

    run(main)


@pytest.mark.slow
def test_foreign_tables_in_postgresql_are_refused(run: Runner) -> None:
    import asyncpg

    async def main() -> None:
        with postgres_server() as server:
            connection = await asyncpg.connect(server.url)
            await connection.execute("CREATE TABLE purgatory_versions (key text, version text)")
            with pytest.raises(
                ValueError, match=r'"purgatory_versions" is not a relay\'s, and was left alone'
            ):
                async with Relay(server.url):
                    pass
            assert await connection.fetch("SELECT * FROM purgatory_versions") == []
            await connection.close()

    run(main)


class RecordingStore:
    """Passes calls on to another store, and records its reads and writes."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.address = store.address
        self.reads: list[tuple[tuple[str, ...], int | None]] = []
        self.writes: list[list[Change]] = []
        self.open, self.close, self.listen = store.open, store.close, store.listen
        self.renew, self.send = store.renew, store.send

    async def read(self, keys: tuple[str, ...], since: int | None) -> ReadResult:
        self.reads.append((tuple(keys), since))
        return await self._store.read(keys, since)

    async def write(self, changes: list[Change], connection: Any = None) -> ChangeMessage:
        self.writes.append(list(changes))
        return await self._store.write(changes, connection)


def test_first_waits_and_writes_are_batched_per_iteration(run: Runner, tmp_path: Path) -> None:
    async def main() -> None:
        store = RecordingStore(open_store(f"file://{tmp_path}", "test"))
        async with Relay(store) as here, Relay(f"file://{tmp_path}", prefix="test") as there:
            store.reads.clear()
            waits = [
                asyncio.create_task(here.wait(f"key{number % 40}", 0, TIMEOUT))
                for number in range(400)
            ]
            await until(lambda: bool(store.reads))
            await asyncio.sleep(0.05)
            assert len(store.reads) <= 2
            bumps = [
                *(here.bump("a") for _ in range(5)),
                here.advance("a", 10),
                *(here.bump(f"key{n}") for n in range(40)),
            ]
            assert (await asyncio.gather(*bumps))[:6] == [11, 12, 13, 14, 15, 15]
            [changes] = store.writes
            assert changes[0] == ("a", 10, 5)
            assert len(changes) == 41
            assert await asyncio.gather(*waits) == [1] * 400
            await until(lambda: there.statistics().received == 41)
            assert here.statistics().sent == 41

    run(main)


@on_both_loops
def test_ten_thousand_transient_keys_leave_no_state(
    run: Runner, file_relay: Callable[..., Relay]
) -> None:
    async def main() -> None:
        async with file_relay() as here:
            waits = [
                asyncio.create_task(here.wait(f"key{number}", 0, TIMEOUT))
                for number in range(10_000)
            ]
            await asyncio.sleep(0)
            for number in range(0, 10_000, 2):
                waits[number].cancel()
            await asyncio.gather(*(here.bump(f"key{number}") for number in range(1, 10_000, 2)))
            answers = await asyncio.gather(*waits[1::2])
            assert answers == [1] * 5_000
            await asyncio.gather(*waits, return_exceptions=True)
            assert here.statistics().watched == 0
            assert here._thresholds.statistics().keys == 0
            assert not here._follower._keys_to_read

    run(main)


@on_both_loops
def test_wait_seen_beyond_current_ends_with_current_version(
    run: Runner, relay: Callable[..., Relay]
) -> None:
    async def main() -> None:
        async with relay() as here:
            await here.advance("a", 3)
            assert await here.wait("a", 1000, TIMEOUT) == 3

    run(main)


@on_both_loops
def test_wait_beyond_fresh_write_of_another_process_continues(
    run: Runner, relay: Callable[..., Relay]
) -> None:
    async def main() -> None:
        async with relay() as here, relay() as there:
            for number in range(1, 30):
                assert await here.bump("a") == number
                with pytest.raises(TimeoutError):
                    await there.wait("a", number, 0.005)

    run(main)


def test_missing_client_error_names_the_extra(
    program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = """if True:
        import sys
        sys.modules["redis"] = sys.modules["asyncpg"] = None
        from purgatory.relay import Relay
        for url in ("redis://host", "postgresql://host"):
            try:
                Relay(url)
            except ImportError as error:
                print(error)
    """
    printed = program("-c", code).stdout
    assert "pip install '.[redis]' in a clone" in printed
    assert "pip install '.[postgresql]' in a clone" in printed
