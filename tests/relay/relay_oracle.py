"""The oracle: processes on one store, each of which waits, writes and reads; all that is killed and paused.

    python tests/relay/relay_oracle.py [--seconds 60] [--store redis] [--processes 4] [--keys 50] [--forget-after 1] [--seed N]

It does not ask the relays whether all is well, as the soak does. Each process notes each step in a file, this one notes the
faults, and what was missed, early, invented, given twice or gone back follows from these notes alone: see `oracle_judge`. It
prints a row for each store. The exit status is 1 if anything is not 0 that must be.
"""

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from oracle_judge import COUNTED, Fault, Notes, Verdict, judge, lines_of
from relay_soak import connections_killed, remove, remove_sockets
from servers import NatsServer, PostgresServer, RedisServer

WORKER = Path(__file__).with_name("oracle_worker.py")
RESYNC = 1.5
STORE_TIMEOUT = 1.0
STORES = ("file", "redis", "postgresql", "nats")


@dataclass
class Options:
    seconds: float = 60.0
    processes: int = 4
    keys: int = 50
    forget_after: float = 1.0
    slack: float = 5.0
    """Seconds that a busy machine may take longer than is promised."""
    seed: int = 0

    @property
    def promise(self) -> float:
        """A resync, or the time in which a dead connection is noticed and made anew."""
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
    """Of processes that have ended."""
    living: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    @contextmanager
    def fault(self, name: str, **what: Any) -> Iterator[Fault]:
        """Notes what is done in the block, as soon as it begins: the process may read its notes at any time."""
        fault = Fault(name, time.monotonic(), 0.0, **what)
        yield fault
        fault.ended = max(fault.ended, time.monotonic())
        self.faults.append(fault)

    async def start(self, name: str) -> None:
        options = self.options
        words = (self.url, self.folder, name, options.keys, RESYNC, STORE_TIMEOUT, options.forget_after)
        self.living[name] = await asyncio.create_subprocess_exec(sys.executable, str(WORKER), *map(str, words))

    async def kill(self, name: str) -> None:
        process = self.living.pop(name)
        ended = time.monotonic()
        with suppress(ProcessLookupError):
            process.kill()
        status = await process.wait()
        assert status == -signal.SIGKILL, f"process {name} has ended with {status}"
        [file] = [file for file in self.folder.glob(f"{name}.*.log") if file not in self._read] or [None]
        if file is not None:  # it may have been killed before it began
            self._read.add(file)
            self.notes.append((name, lines_of(file), ended))

    _read: set[Path] = field(default_factory=set)

    def verdict(self, end: float = 0.0) -> Verdict:
        """The verdict so far, as if those that live were killed at `end`."""
        living = [
            (name, lines_of(file), end)
            for name in self.living
            for file in self.folder.glob(f"{name}.*.log")
            if file not in self._read
        ]
        return judge([*self.notes, *living], self.faults, self.options.promise, forgets=self.options.forget_after > 0.0)


# -- what is done to a store


async def killed(run: Run) -> None:
    is_lossy = not isinstance(run.store, RedisServer)
    with run.fault("killed", is_lossy=is_lossy, is_new_epoch=True):
        run.store.kill()
        await asyncio.sleep(random.uniform(0.1, 1.0))
        await asyncio.to_thread(run.store.start)


async def paused(run: Run) -> None:
    with run.fault("paused"):
        run.store.pause()
        await asyncio.sleep(random.uniform(0.1, 4.0))
        run.store.resume()


async def cut(run: Run) -> None:
    with run.fault("cut"):
        await connections_killed(run.store)


async def flushed(run: Run) -> None:
    with run.fault("flushed", is_lossy=True, is_new_epoch=True):
        if isinstance(run.store, RedisServer):
            run.store.ask("FLUSHALL")
        else:
            run.store.publish("$JS.API.STREAM.PURGE.purgatory_versions")


async def deleted(run: Run) -> None:
    with run.fault("deleted", is_lossy=True, is_new_epoch=True) as fault:
        remove(run.store)
        fault.ended = time.monotonic() + run.options.promise  # until all have noticed it, some write where it was


async def unheard(run: Run) -> None:
    with run.fault("sockets deleted"):
        remove_sockets(run.store)


FAULTS: dict[str, list[Callable[[Run], Awaitable[None]]]] = {
    "file": [deleted, unheard, unheard],
    "redis": [killed, paused, cut, flushed],
    "postgresql": [killed, paused, cut],
    "nats": [killed, paused, flushed],
}


async def disturb_store(run: Run, kind: str, end: float) -> None:
    while time.monotonic() < end:
        await asyncio.sleep(random.uniform(0.5, 2.0 * run.options.promise))
        await random.choice(FAULTS[kind])(run)


async def disturb_processes(run: Run, end: float) -> None:
    """Kills one and starts another one of its name, or pauses it."""
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


@asynccontextmanager
async def opened(kind: str) -> AsyncIterator[tuple[str, Any]]:
    """The address of a store, and its server or folder."""
    with tempfile.TemporaryDirectory(prefix="oracle-") as temporary:
        folder = Path(temporary) / "app"
        server: Any = None
        if kind == "redis":
            server = RedisServer(Path(temporary), "--appendonly", "yes", "--appendfsync", "always")
        elif kind == "postgresql":
            server = PostgresServer()
        elif kind == "nats":
            server = NatsServer(Path(temporary))
        try:
            yield server.start().url if server else f"file://{folder}", server or folder
        finally:
            if server is not None:
                server.kill()
            if isinstance(server, PostgresServer):
                server.remove()


async def examine(kind: str, options: Options) -> tuple[Verdict, list[Fault]]:
    """The verdict on a store, and what was done."""
    random.seed(f"{kind} {options.seed}")
    notes = Path(tempfile.mkdtemp(prefix="oracle-notes-"))
    async with opened(kind) as (url, store):
        run = Run(url, store, notes, options)
        try:
            for number in range(options.processes):
                await run.start(f"process{number}")
            end = time.monotonic() + options.seconds
            await asyncio.gather(disturb_store(run, kind, end), disturb_processes(run, end))
            (notes / "quiet").touch()
            end = time.monotonic() + 2.0 * options.promise
            await asyncio.sleep(1.0)
            while time.monotonic() < end and run.verdict(inf).missed:
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


def main() -> int:
    parser = argparse.ArgumentParser(description="Judges relays by the notes of processes that are killed and paused.")
    parser.add_argument("--seconds", type=float, default=Options.seconds, help="of faults on each store (default: 60)")
    parser.add_argument("--processes", type=int, default=Options.processes, help="(default: 4)")
    parser.add_argument("--keys", type=int, default=Options.keys, help="that each process waits for (default: 50)")
    parser.add_argument("--forget-after", type=float, default=Options.forget_after, help="seconds, 0 for never (default: 1)")
    parser.add_argument("--slack", type=float, default=Options.slack, help="seconds beyond the promised ones (default: 5)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the faults")
    parser.add_argument("--store", choices=STORES, action="append", help="only this; may be repeated")
    words = vars(parser.parse_args())
    stores = words.pop("store") or STORES
    options = Options(**words)
    print(f"seed {options.seed}; each answer is due within {options.promise:g} s")
    print(f"{'':12}", *(f"{name:>8}" for name in ("faults", *COUNTED)))
    wrong = 0
    for kind in stores:
        verdict, faults = asyncio.run(examine(kind, options))
        wrong += verdict.wrong
        numbers = [len(faults), *(getattr(verdict, name) for name in COUNTED)]
        cells = [f"{number:.3f}" if isinstance(number, float) else number for number in numbers]
        print(f"{kind:12}", *(f"{cell:>8}" for cell in cells), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
