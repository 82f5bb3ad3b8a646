"""Relays keep their promises on real stores, while several processes wait, write and read, and they
and the store are killed and paused; the judge of their calls finds each fault."""

import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest
from oracle_judge import Call, Fault, Verdict, calls_of, judge
from servers import APPENDING, PostgresServer, RedisServer, served

LOSS = Fault("flushed", 2.0, 2.1, is_lossy=True, is_new_epoch=True)
PAUSE = Fault("paused", 3.0, 4.1, process="one")


def bump(begun: float, ended: float, version: int, key: str = "a") -> Call:
    return Call("bump", key, (), begun, ended, version)


def wait(begun: float, ended: float, seen: int, version: int, seen_at: float = 0.0) -> Call:
    return Call("wait", "a", (seen, seen_at), begun, ended, version)


def endless(kind: str, *given: Any, key: str = "a") -> Call:
    return Call(kind, key, given, 0.5, 20.0, is_answered=False)


def delivery(begun: float, value: str, is_settled: bool, ended: float = 0.0) -> Call:
    return Call("deliver", "r", (value, 9), begun, ended or begun + 0.1, is_settled)


def receive(ended: float, value: str) -> Call:
    return Call("receive", "r", (), 0.5, ended, value)


def ask(begun: float, ended: float, value: str | None) -> Call:
    return Call("ask", "r", (), begun, ended, value)


ONE, FIRST = bump(1.0, 1.1, 1), delivery(1.0, "one", True)
ASKED = ask(2.0, 2.1, "two")


@pytest.mark.parametrize(
    ("calls", "faults", "found"),
    [
        ([ONE, wait(0.0, 1.2, 0, 1), bump(2.0, 2.1, 2), wait(5.0, 5.1, 1, 2)], (), ""),
        ([ONE, wait(0.0, 3.2, 0, 1)], (), "missed"),
        ([ONE, endless("wait", 0, 0.0)], (), "missed"),
        ([ONE, endless("wait", 1, 0.0)], (), ""),
        ([ONE, wait(0.0, 6.0, 0, 1)], (PAUSE,), ""),
        ([ONE, wait(0.0, 6.0, 0, 1)], (Fault("paused", 2.0, 3.9),), "missed"),
        ([ONE, wait(0.0, 6.0, 0, 1)], (Fault("paused", 3.0, 4.1, process="x"),), "missed"),
        ([endless("wait", 7, 0.0)], (LOSS,), "missed"),
        ([wait(0.0, 4.0, 7, 0)], (LOSS,), ""),
        ([ONE, wait(3.0, 3.1, 1, 1, 2.9)], (), "early"),
        ([ONE, wait(3.0, 3.1, 1, 1, 2.9)], (Fault("x", 2.5, 2.6, is_new_epoch=True),), ""),
        ([ONE, wait(3.0, 3.1, 1, 1, 2.9)], (Fault("x", 0.2, 0.3, is_new_epoch=True),), "early"),
        ([ONE, wait(0.0, 1.2, 0, 2)], (), "invented"),
        ([ONE, endless("bump"), wait(0.0, 1.2, 0, 2)], (), ""),  # perhaps written
        ([bump(1.0, 1.1, 9, "b"), ONE, wait(0.0, 1.2, 0, 9)], (), "invented"),
        ([ONE, bump(1.0, 1.2, 1)], (), "back"),
        ([bump(1.0, 1.1, 2), bump(2.0, 2.1, 1)], (), "back"),
        ([bump(1.0, 1.1, 2), bump(3.0, 3.1, 1)], (LOSS,), ""),
        ([bump(1.0, 1.1, 2), Call("read", "a", (), 1.2, 1.3, 1)], (), "back"),
        ([bump(1.0, 1.1, 2), Call("read", "a", (), 1.05, 1.3, 1)], (), ""),
        ([FIRST, delivery(3.0, "two", False)], (), ""),
        ([FIRST, delivery(3.0, "two", True)], (), "settled_twice"),
        ([FIRST, delivery(3.0, "two", True)], (LOSS,), ""),
        ([FIRST, delivery(10.2, "two", True)], (), ""),
        ([FIRST, receive(3.0, "one")], (), ""),
        ([FIRST, receive(3.2, "one")], (), "unreceived"),
        ([FIRST, receive(3.2, "one")], (Fault("paused", 1.0, 1.3),), ""),
        ([FIRST, endless("receive", key="r")], (), "unreceived"),
        ([FIRST, ask(2.0, 2.1, None)], (), "unreceived"),
        ([FIRST, ask(10.25, 10.3, "one")], (), "overdue"),
        ([FIRST, ask(9.9, 10.3, "one")], (), ""),
        ([delivery(1.2, "two", False), ASKED], (LOSS,), "invented"),
        ([delivery(1.2, "two", False, 2.3), ASKED], (LOSS,), ""),  # made, lost, and made again
    ],
)
def test_judge_finds_the_fault(calls: list[Call], faults: tuple[Fault, ...], found: str) -> None:
    verdict = judge(calls, faults, 2.0, forgets=False)
    assert verdict.wrong == bool(found) == verdict[found]


WORKER = Path(__file__).with_name("oracle_worker.py")
PROCESSES, KEYS = 3, 20
RESYNC, STORE_TIMEOUT = 1.5, 1.0
SLACK = 20.0
"""Extra seconds that a busy machine may take."""
PROMISE = max(RESYNC, 3.0 * STORE_TIMEOUT) + SLACK
"""Time for a resync, or for replacing a dead connection, in seconds."""
UNTIL_NOTICED = {"is_lossy": True, "is_new_epoch": True, "lasts": PROMISE}


class Run:
    """Some processes on one store, which note their calls in a folder."""

    def __init__(self, store: Any, folder: Path, forget_after: float) -> None:
        self.store, self.folder, self.forget_after = store, folder, forget_after
        self.faults: list[Fault] = []
        self.living: dict[str, tuple[asyncio.subprocess.Process, Path]] = {}
        self.ended: dict[Path, float] = {}

    @contextmanager
    def fault(self, name: str, lasts: float = 0.0, **what: Any) -> Iterator[None]:
        """Notes a fault that takes as long as the block, and has effects for longer."""
        begun = time.monotonic()
        yield
        self.faults.append(Fault(name, begun, time.monotonic() + lasts, **what))

    async def start(self, name: str) -> None:
        file = self.folder / f"{name}.{time.monotonic_ns():020}.log"
        words = (self.store.url, file, KEYS, RESYNC, STORE_TIMEOUT, self.forget_after)
        command = sys.executable, str(WORKER), *map(str, words)
        self.living[name] = await asyncio.create_subprocess_exec(*command), file

    async def kill(self, name: str) -> None:
        process, file = self.living.pop(name)
        self.ended[file] = time.monotonic()
        with suppress(ProcessLookupError):
            process.kill()
        status = await process.wait()
        assert status == -signal.SIGKILL, f"process {name} has ended with {status}"

    def verdict(self) -> Verdict:
        """The verdict so far, as if the living processes were never answered again."""
        files = self.folder.glob("*.log")
        calls = [call for file in files for call in calls_of(file, self.ended.get(file, inf))]
        return judge(calls, self.faults, PROMISE, self.forget_after > 0.0)


# Faults of a store


async def killed(run: Run) -> None:
    is_lossy = not isinstance(run.store, RedisServer)
    with run.fault("killed", is_lossy=is_lossy, is_new_epoch=True):
        run.store.kill()
        await asyncio.sleep(random.uniform(0.1, 1.0))
        await asyncio.to_thread(run.store.start)


async def taken_over(run: Run) -> None:
    """The primary of a cluster is killed, and comes back as a replica."""
    with run.fault("taken over", is_lossy=True, is_new_epoch=True):
        await asyncio.to_thread(run.store.take_over, run.store.primary.kill)
        await asyncio.sleep(random.uniform(0.1, 1.0))
        await asyncio.to_thread(run.store.replica.start)
        await asyncio.to_thread(run.store.await_replica)


async def paused(run: Run) -> None:
    with run.fault("paused"):
        run.store.pause()
        await asyncio.sleep(random.uniform(0.1, 4.0))
        run.store.resume()


async def cut(run: Run) -> None:
    with run.fault("cut"):
        await asyncio.to_thread(run.store.end_relays)
        await asyncio.sleep(0.3)


async def flushed(run: Run) -> None:
    with run.fault("flushed", is_lossy=True, is_new_epoch=True):
        if isinstance(run.store, RedisServer):
            run.store.ask("FLUSHALL")
        else:
            for stream in ("purgatory_versions", "purgatory_settled"):
                run.store.publish(f"$JS.API.STREAM.PURGE.{stream}")


async def deleted(run: Run) -> None:
    """For a while some processes write to the old files."""
    with run.fault("deleted", **UNTIL_NOTICED):
        folder = run.store.folder
        if folder.exists():  # in one step: SQLite breaks if files are deleted one by one
            shutil.rmtree(folder.rename(folder.with_name(f"gone-{time.monotonic_ns()}")))


async def rolled_back(run: Run) -> None:
    """Takes a backup, and restores it some seconds later."""
    restore = await asyncio.to_thread(back_up, run.store)
    await asyncio.sleep(random.uniform(0.5, 3.0))
    with run.fault("rolled back", **UNTIL_NOTICED):
        await asyncio.to_thread(restore)


async def rows_deleted(run: Run) -> None:
    """Deletes the versions of some keys behind the store's back."""
    with run.fault("rows deleted", **UNTIL_NOTICED):
        names = [f"key{random.randrange(KEYS)}" for _ in range(3)]
        await asyncio.to_thread(run.store.delete_rows, *names)


def back_up(store: Any) -> Callable[[], None]:
    """Backs up a running store; returns a function that restores the backup."""
    if isinstance(store, RedisServer):
        import redis

        client = redis.Redis.from_url(store.url)
        now = time.time()  # before reading the remaining times to live
        kept = {name: (client.dump(name), client.pttl(name)) for name in client.keys("*")}

        def restore() -> None:
            with client.pipeline() as pipeline:
                pipeline.flushall()
                for name, (value, ttl) in kept.items():
                    if value is not None and ttl:
                        until = int((now + ttl / 1_000) * 1_000) if ttl > 0 else 0
                        pipeline.restore(name, until, value, absttl=True)
                pipeline.execute()
            client.close()

        return restore
    if isinstance(store, PostgresServer):
        tables = ("purgatory_versions", "purgatory_settled")
        store.run("; ".join(f"CREATE TABLE kept_{name} AS TABLE {name}" for name in tables))

        def restore_tables() -> None:
            for name in tables:
                copy = f"DELETE FROM {name}; INSERT INTO {name} TABLE kept_{name}"
                store.run(f"BEGIN; LOCK TABLE {name}; {copy}; COMMIT; DROP TABLE kept_{name}")

        return restore_tables
    restore_file: Callable[[], None] = store.back_up()
    return restore_file


async def unheard(run: Run) -> None:
    with run.fault("sockets deleted"):
        for path in run.store.folder.glob("*.sock"):
            path.unlink(missing_ok=True)


Injector = Callable[[Run], Awaitable[None]]
FAULTS: dict[str, list[Injector]] = {
    "file": [deleted, unheard, unheard],
    "redis": [killed, paused, cut, flushed],
    "replicated": [taken_over],
    "postgresql": [killed, paused, cut],
    "nats": [killed, paused, flushed],
}
LOSSES: dict[str, list[Injector]] = {
    **{kind: [rolled_back, rows_deleted] for kind in ("file", "redis", "postgresql")},
    "nats": [rows_deleted],  # its streams are in memory
}


async def examine(
    store: Any, faults: list[Injector], seconds: float, forget_after: float
) -> tuple[Verdict, set[str]]:
    """The verdict on a store, and the names of the injected faults."""
    random.seed(store.url.partition(":")[0])
    run = Run(store, Path(tempfile.mkdtemp(prefix="oracle-")), forget_after)
    end = time.monotonic() + seconds

    async def disturb_store() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(random.uniform(0.5, 6.0))
            await random.choice(faults)(run)

    async def disturb_processes() -> None:
        """Pauses random processes, or kills them and starts new ones under their names."""
        while time.monotonic() < end:
            await asyncio.sleep(random.uniform(0.5, 3.0))
            name = random.choice(list(run.living))
            if random.random() < 0.5:
                await run.kill(name)
                await run.start(name)
            else:
                process, _ = run.living[name]
                with run.fault("paused", process=name):
                    process.send_signal(signal.SIGSTOP)
                    await asyncio.sleep(random.uniform(0.1, 3.0))
                    process.send_signal(signal.SIGCONT)

    try:
        for number in range(PROCESSES):
            await run.start(f"process{number}")
        await asyncio.gather(disturb_store(), disturb_processes())
        (run.folder / "quiet").touch()
        end = time.monotonic() + 2.0 * PROMISE
        await asyncio.sleep(1.0)
        while time.monotonic() < end and run.verdict()["missed"]:
            await asyncio.sleep(1.0)
        for name in list(run.living):
            await run.kill(name)
    finally:
        for process, _ in run.living.values():
            with suppress(ProcessLookupError):
                process.kill()
    verdict = run.verdict()
    assert verdict.wrong == 0, [f"the calls are in {run.folder}", *verdict.examples]
    shutil.rmtree(run.folder)
    return verdict, {fault.name for fault in run.faults}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "faults", "seconds", "forget_after"),
    [
        ("file", FAULTS["file"], 10.0, 0.0),
        *((kind, faults, 10.0, 0.5) for kind, faults in FAULTS.items()),
        *((kind, faults, 15.0, 1.0) for kind, faults in LOSSES.items()),
    ],
)
def test_relays_keep_promises_through_faults(
    tmp_path: Path, kind: str, faults: list[Injector], seconds: float, forget_after: float
) -> None:
    with served(kind, tmp_path, *APPENDING) as store:
        verdict, injected = asyncio.run(examine(store, faults, seconds, forget_after))
    assert min(verdict[kind] for kind in ("bump", "wait", "read")) > 100
    assert min(verdict[kind] for kind in ("deliver", "receive", "ask")) > 20
    assert len(injected) > 1
