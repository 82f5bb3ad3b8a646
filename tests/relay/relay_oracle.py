"""The oracle: several processes wait, write and read on one store, while it kills and pauses the
processes and the store.

Each process notes its steps in a file, and `examine` notes the faults. `oracle_judge` finds the
errors from these notes alone.
"""

import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from oracle_judge import Fault, Notes, Verdict, judge, lines_of
from servers import APPENDING, PostgresServer, RedisServer, served

WORKER = Path(__file__).with_name("oracle_worker.py")
RESYNC = 1.5
STORE_TIMEOUT = 1.0
STORES = ("file", "redis", "cluster", "postgresql", "nats")


@dataclass
class Options:
    seconds: float
    processes: int = 3
    keys: int = 20
    forget_after: float = 1.0
    slack: float = 20.0
    """Extra seconds that a busy machine may take."""
    seed: int = 0
    rollbacks: bool = False
    """Whether the only faults of stores are lost rows and restored backups."""

    @property
    def promise(self) -> float:
        """Time for a resync, or for replacing a dead connection, in seconds."""
        return max(RESYNC, 3.0 * STORE_TIMEOUT) + self.slack


@dataclass
class Run:
    """One run on one store."""

    url: str
    store: Any
    folder: Path
    options: Options
    faults: list[Fault] = field(default_factory=list)
    notes: list[Notes] = field(default_factory=list)
    """Notes of processes that have ended."""
    living: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    @contextmanager
    def fault(self, name: str, **what: Any) -> Iterator[Fault]:
        """Notes a fault that lasts as long as the block."""
        fault = Fault(name, time.monotonic(), 0.0, **what)
        yield fault
        fault.ended = max(fault.ended, time.monotonic())
        self.faults.append(fault)

    async def start(self, name: str) -> None:
        options = self.options
        seconds = (RESYNC, STORE_TIMEOUT, options.forget_after)
        words = (self.url, self.folder, name, options.keys, *seconds)
        self.living[name] = await asyncio.create_subprocess_exec(
            sys.executable, str(WORKER), *map(str, words)
        )

    async def kill(self, name: str) -> None:
        process = self.living.pop(name)
        ended = time.monotonic()
        with suppress(ProcessLookupError):
            process.kill()
        status = await process.wait()
        assert status == -signal.SIGKILL, f"process {name} has ended with {status}"
        [file] = [file for file in self.folder.glob(f"{name}.*.log") if file not in self._read] or [
            None
        ]
        if file is not None:  # it may have been killed before it began
            self._read.add(file)
            self.notes.append((name, lines_of(file), ended))

    _read: set[Path] = field(default_factory=set)

    def verdict(self, end: float = 0.0) -> Verdict:
        """The verdict so far, as if the living processes were killed at `end`."""
        living = [
            (name, lines_of(file), end)
            for name in self.living
            for file in self.folder.glob(f"{name}.*.log")
            if file not in self._read
        ]
        forgets = self.options.forget_after > 0.0
        return judge([*self.notes, *living], self.faults, self.options.promise, forgets)


# -- faults of a store


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
        if isinstance(run.store, RedisServer):
            for kind in ("pubsub", "normal"):
                run.store.ask("CLIENT", "KILL", "TYPE", kind)
        else:
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
    with run.fault("deleted", is_lossy=True, is_new_epoch=True) as fault:
        folder = run.store.folder
        if folder.exists():  # in one step: SQLite breaks if files are deleted one by one
            shutil.rmtree(folder.rename(folder.with_name(f"gone-{time.monotonic_ns()}")))
        fault.ended = (
            time.monotonic() + run.options.promise
        )  # until then some processes write to the old files


async def rolled_back(run: Run) -> None:
    """Takes a backup, and restores it some seconds later."""
    what = {"is_lossy": True, "is_new_epoch": True}
    restore = await asyncio.to_thread(back_up, run)
    await asyncio.sleep(random.uniform(0.5, 3.0))
    with run.fault("rolled back", **what) as fault:
        await asyncio.to_thread(restore)
        fault.ended = time.monotonic() + run.options.promise  # until all processes have noticed


async def rows_deleted(run: Run) -> None:
    """Deletes the versions and replies of some keys behind the store's back."""
    with run.fault("rows deleted", is_lossy=True, is_new_epoch=True) as fault:
        names = [f"key{random.randrange(run.options.keys)}" for _ in range(3)]
        await asyncio.to_thread(run.store.delete_rows, "purgatory", *names)
        fault.ended = time.monotonic() + run.options.promise


def back_up(run: Run) -> Callable[[], None]:
    """Backs up a running store; returns a function that restores the backup."""
    if isinstance(run.store, RedisServer):
        import redis

        client = redis.Redis.from_url(run.url)
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
    if isinstance(run.store, PostgresServer):
        tables = ("purgatory_versions", "purgatory_settled")
        run.store.run("; ".join(f"CREATE TABLE kept_{name} AS TABLE {name}" for name in tables))

        def restore_tables() -> None:
            for name in tables:
                copy = f"DELETE FROM {name}; INSERT INTO {name} TABLE kept_{name}"
                run.store.run(f"BEGIN; LOCK TABLE {name}; {copy}; COMMIT; DROP TABLE kept_{name}")

        return restore_tables
    return run.store.back_up("purgatory")


async def unheard(run: Run) -> None:
    with run.fault("sockets deleted"):
        for path in run.store.folder.glob("*.sock"):
            path.unlink(missing_ok=True)


FAULTS: dict[str, list[Callable[[Run], Awaitable[None]]]] = {
    "file": [deleted, unheard, unheard],
    "redis": [killed, paused, cut, flushed],
    "cluster": [taken_over],
    "postgresql": [killed, paused, cut],
    "nats": [killed, paused, flushed],
}


ROLLBACKS: dict[str, list[Callable[[Run], Awaitable[None]]]] = {
    **{kind: [rolled_back, rows_deleted] for kind in ("file", "redis", "postgresql")},
    "nats": [rows_deleted],  # its streams are in memory
}


async def disturb_store(run: Run, kind: str, end: float) -> None:
    faults = (ROLLBACKS if run.options.rollbacks else FAULTS)[kind]
    while time.monotonic() < end:
        await asyncio.sleep(random.uniform(0.5, 2.0 * run.options.promise))
        await random.choice(faults)(run)


async def disturb_processes(run: Run, end: float) -> None:
    """Pauses random processes, or kills them and starts new ones under their names."""
    while time.monotonic() < end:
        await asyncio.sleep(random.uniform(0.5, 3.0))
        name = random.choice(list(run.living))
        if random.random() < 0.5:
            await run.kill(name)
            await run.start(name)
        else:
            with run.fault("paused", process=name):
                run.living[name].send_signal(signal.SIGSTOP)
                await asyncio.sleep(random.uniform(0.1, 3.0))
                run.living[name].send_signal(signal.SIGCONT)


async def examine(kind: str, options: Options) -> tuple[Verdict, list[Fault]]:
    """The verdict on a store, and the injected faults."""
    random.seed(f"{kind} {options.seed}")
    notes = Path(tempfile.mkdtemp(prefix="oracle-notes-"))
    kind_of_server = "replicated" if kind == "cluster" else kind
    with (
        tempfile.TemporaryDirectory(prefix="oracle-") as folder,
        served(kind_of_server, Path(folder), *APPENDING) as store,
    ):
        run = Run(store.url, store, notes, options)
        try:
            for number in range(options.processes):
                await run.start(f"process{number}")
            end = time.monotonic() + options.seconds
            await asyncio.gather(disturb_store(run, kind, end), disturb_processes(run, end))
            (notes / "quiet").touch()
            end = time.monotonic() + 2.0 * options.promise
            await asyncio.sleep(1.0)
            while time.monotonic() < end and run.verdict(inf)["missed"]:
                await asyncio.sleep(1.0)
            for name in list(run.living):
                await run.kill(name)
        finally:
            for process in run.living.values():
                with suppress(ProcessLookupError):
                    process.kill()
    verdict = run.verdict()
    if verdict.wrong:
        print(f"the notes are in {notes}", *verdict.examples, sep="\n")
    else:
        shutil.rmtree(notes)
    return verdict, run.faults
