"""Relays keep their promises on real stores, while several processes wait, write and read, and they
and the store are killed and paused at random. Losses of each kind are in `test_outages`."""

import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from oracle_worker import KEYS, Call, calls_of, last_waits
from servers import APPENDING, TIMEOUT, RedisServer, served

from purgatory.relay import Relay


def complaints(calls: Sequence[Call]) -> Iterator[str]:
    """The errors in the answers of a store that has lost nothing. All times are from one clock;
    waits are checked where they end."""
    by_key = defaultdict(list)
    for call in calls:
        by_key[call.key].append(call)
    for key, group in by_key.items():
        bumps = [call.answer for call in group if call.kind == "bump"]
        if len({*bumps}) < len(bumps):
            yield f"{key}: a version was given twice"
        values = {call.answer for call in group if call.kind in ("deliver", "receive")} - {""}
        if len(values) > 1 or not all(value.endswith(f" {key}") for value in values):
            yield f"{key}: was settled by {values}"
        versions = [call for call in group if call.kind in ("bump", "read")]
        times = ((time, call) for call in versions for time in (call.begun, call.ended))
        highest, floors = 0, {}
        for _, call in sorted(times, key=lambda each: each[0]):
            if id(call) not in floors:  # it begins
                floors[id(call)] = highest + (call.kind == "bump")
                continue
            if call.answer < floors[id(call)]:
                yield f"{key}: expected at least {floors[id(call)]} of {call}"
            highest = max(highest, call.answer)


def call(kind: str, answer: Any, begun: float = 1.0, ended: float = 1.1, key: str = "a") -> Call:
    return Call(kind, key, begun, ended, answer)


ONE, TWO = call("bump", 1), call("bump", 2)


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([ONE, call("bump", 3), call("read", 1, 1.05, 3.0), call("bump", 4, 2.0, 2.1)], ""),
        ([ONE, call("bump", 1, 1.0, 1.2)], "given twice"),
        ([TWO, call("bump", 1, 2.0, 2.1)], "at least 3 of"),
        ([TWO, call("read", 1, 1.2, 1.3)], "at least 2 of"),
        ([call("deliver", "x a"), call("deliver", ""), call("receive", "x a")], ""),
        ([call("deliver", "x a"), call("deliver", "y a")], "was settled by"),
        ([call("receive", "x a"), call("receive", "y a")], "was settled by"),
        ([call("receive", "x b")], "was settled by"),
    ],
)
def test_wrong_answers_are_found(calls, found):
    wrong = [*complaints(calls)]
    assert len(wrong) == bool(found) and all(found in each for each in wrong)


WORKER = Path(__file__).with_name("oracle_worker.py")
PROCESSES, RESYNC, STORE_TIMEOUT = 3, 1.5, 1.0


class Run:
    """Some processes on one store, which note their calls in a folder."""

    def __init__(self, store: Any, folder: Path, forget_after: float) -> None:
        self.store, self.folder, self.forget_after = store, folder, forget_after
        self.living: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str) -> None:
        file = self.folder / f"{name}.{time.monotonic_ns():020}.log"
        words = (self.store.url, file, RESYNC, STORE_TIMEOUT, self.forget_after)
        command = sys.executable, str(WORKER), *map(str, words)
        self.living[name] = await asyncio.create_subprocess_exec(*command)

    async def kill(self, name: str) -> None:
        process = self.living.pop(name)
        assert process.returncode is None, f"{name} has ended with {process.returncode}"
        process.kill()
        await process.wait()

    def calls(self) -> list[Call]:
        return [call for file in self.folder.glob("*.log") for call in calls_of(file)]

    async def missing(self, keeps_all: bool) -> list[Any]:
        """What the living processes have not received, though no more is written: versions, and
        from a store that `keeps_all` also replies."""
        calls = self.calls()
        async with Relay(self.store.url, timeout=TIMEOUT) as relay:
            there = {key: await relay.version(key) for key in KEYS}
        if keeps_all:  # a forgotten key has the number of another one
            bumps = [call for call in calls if call.kind == "bump"]
            there = {key: max((b.answer for b in bumps if b.key == key), default=0) for key in KEYS}
        settled = {call.key for call in calls if call.kind == "deliver" and call.answer}
        missed: list[Any] = []
        for name in self.living:
            seen = last_waits(self.folder, name)
            for key, version in there.items():
                found, _ = seen.get(key, (0, ""))
                if found < version if keeps_all else found != version:
                    missed.append((name, key, found, version))
            file = max(self.folder.glob(f"{name}.*.log"))
            keys = Counter(call.key for call in calls_of(file) if "receiv" in call.kind)
            missed += [(name, key) for key in settled if keeps_all and keys[key] == 1]
        return missed


# Faults of a store


async def killed(run: Run) -> None:
    run.store.kill()
    await asyncio.sleep(random.uniform(0.1, 1.0))
    await asyncio.to_thread(run.store.start)


async def taken_over(run: Run) -> None:
    """The primary of a cluster is killed, and comes back as a replica."""
    await asyncio.to_thread(run.store.take_over, run.store.primary.kill)
    await asyncio.sleep(random.uniform(0.1, 1.0))
    await asyncio.to_thread(run.store.replica.start)
    await asyncio.to_thread(run.store.await_replica)


async def paused(run: Run) -> None:
    run.store.pause()
    await asyncio.sleep(random.uniform(0.1, 4.0))
    run.store.resume()


async def cut(run: Run) -> None:
    await asyncio.to_thread(run.store.end_relays)


async def flushed(run: Run) -> None:
    if isinstance(run.store, RedisServer):
        run.store.ask("FLUSHALL")
    else:
        for stream in ("purgatory_versions", "purgatory_settled"):
            run.store.publish(f"$JS.API.STREAM.PURGE.{stream}")


async def deleted(run: Run) -> None:
    """For a while some processes write to the old files."""
    folder = run.store.folder
    if folder.exists():  # in one step: SQLite breaks if files are deleted one by one
        shutil.rmtree(folder.rename(folder.with_name(f"gone-{time.monotonic_ns()}")))


async def unheard(run: Run) -> None:
    for path in run.store.folder.glob("*.sock"):
        path.unlink(missing_ok=True)


Injector = Callable[[Run], Awaitable[None]]
HARMLESS: dict[str, list[Injector]] = {
    "file": [unheard],
    "redis": [killed, paused, cut],
    "postgresql": [paused, cut],
    "nats": [paused],
}
"""Faults after which a store has all that it had."""
LOSSES: dict[str, list[Injector]] = {
    "file": [deleted, unheard],
    "redis": [flushed, paused],
    "replicated": [taken_over],
    "postgresql": [killed, paused, cut],
    "nats": [killed, paused, flushed],
}


async def disturb(run: Run, faults: list[Injector], seconds: float) -> None:
    """Injects faults of the store, and kills or pauses processes, at random."""
    end = time.monotonic() + seconds

    async def disturb_store() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(random.uniform(0.5, 4.0))
            await random.choice(faults)(run)

    async def disturb_processes() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(random.uniform(0.5, 3.0))
            name = random.choice(list(run.living))
            if random.random() < 0.5:
                await run.kill(name)
                await run.start(name)
            else:
                run.living[name].send_signal(signal.SIGSTOP)
                await asyncio.sleep(random.uniform(0.1, 3.0))
                run.living[name].send_signal(signal.SIGCONT)

    await asyncio.gather(disturb_store(), disturb_processes())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "faults", "keeps_all"),
    [
        *((kind, faults, True) for kind, faults in HARMLESS.items()),
        *((kind, faults, False) for kind, faults in LOSSES.items()),
    ],
)
async def test_relays_keep_promises_through_faults(tmp_path, kind, faults, keeps_all):
    random.seed(kind)
    folder = Path(tempfile.mkdtemp(prefix="oracle-"))
    with served(kind, tmp_path, *APPENDING) as store:
        run = Run(store, folder, forget_after=0.5 if keeps_all else 0.0)
        try:
            for number in range(PROCESSES):
                await run.start(f"process{number}")
            await disturb(run, faults, 10.0)
            (folder / "quiet").touch()
            end = time.monotonic() + TIMEOUT / 2
            while (missed := await run.missing(keeps_all)) and time.monotonic() < end:
                await asyncio.sleep(1.0)
            assert missed == [], f"the calls are in {folder}"
            for name in list(run.living):
                await run.kill(name)
        finally:
            for process in run.living.values():
                process.kill()
    calls = run.calls()
    counts = Counter(call.kind for call in calls)
    assert min(counts[each] for each in ("bump", "wait", "read", "deliver", "receive")) > 20
    if keeps_all:
        assert [*complaints(calls)] == [], f"the calls are in {folder}"
    shutil.rmtree(folder)
