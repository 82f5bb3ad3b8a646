"""A process of the oracle: waits for all keys, writes and reads them, and notes each answer.

    python oracle_worker.py URL FILE RESYNC TIMEOUT FORGET_AFTER

Its waits continue from the last versions that earlier processes of its name noted. Once the folder
of the file has a file `quiet`, it only waits.
"""

import asyncio
import json
import logging
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from purgatory import OperationTimeout, RelayUnavailable
from purgatory.relay import Relay

KEYS = [f"key{number}" for number in range(20)]
PAUSE = 0.02
"""Average seconds between two calls of a loop."""
REPLY_SLOT = 0.2
"""Length of a slot, in seconds; all processes use the same new key in a slot."""
TTL = 240.0


class Call(NamedTuple):
    """An answered call. Answers: a version of `bump` and `read`, a version and its epoch of `wait`,
    the value of `receive`, and of `deliver` if it has settled the key. `receiving` is the begin of
    `receive`."""

    kind: str
    key: str
    begun: float
    ended: float
    answer: Any = None


def calls_of(file: Path) -> list[Call]:
    """The calls in a file; a killed process may leave an incomplete last line."""
    return [Call(*json.loads(line)) for line in file.read_text().split("\n")[:-1]]


def last_waits(folder: Path, name: str) -> dict[str, tuple[int, str]]:
    """The version of each key that the processes of a name saw last, and its epoch."""
    files = sorted(folder.glob(f"{name}.*"))
    return {
        call.key: call.answer for file in files for call in calls_of(file) if call.kind == "wait"
    }


class Worker:
    def __init__(self, relay: Relay, file: Path) -> None:
        self.relay, self.file = relay, file
        self.log = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def note(self, kind: str, key: str, begun: float, answer: Any = None) -> None:
        """Writes a line before the next step, so that it survives a kill."""
        call = Call(kind, key, begun, time.monotonic(), answer)
        os.write(self.log, json.dumps(call).encode() + b"\n")

    async def call(self, kind: str, key: str, answer: Awaitable[Any]) -> Any:
        """Makes a call, and notes its answer unless the store is away."""
        begun = time.monotonic()
        with suppress(RelayUnavailable, OperationTimeout):
            self.note(kind, key, begun, await answer)

    async def until_quiet(self) -> AsyncIterator[None]:
        while not (self.file.parent / "quiet").exists():
            yield
            await asyncio.sleep(random.uniform(0.0, 2.0 * PAUSE))

    async def keep_waiting(self, key: str, seen: int, epoch: str | None) -> None:
        while True:
            begun, before = time.monotonic(), self.relay.epoch
            version = await self.relay.wait(key, seen, epoch=epoch)
            assert version > seen or self.relay.epoch != epoch, (key, seen, version)
            seen, epoch = version, before  # an old epoch has the next wait end at once
            self.note("wait", key, begun, (seen, epoch))

    async def keep_writing(self) -> None:
        async for _ in self.until_quiet():
            # Skewed: some keys are written all the time, others are forgotten between writes.
            key = KEYS[int(len(KEYS) * random.random() ** 3)]
            await self.call("bump", key, self.relay.bump(key))

    async def keep_reading(self) -> None:
        async for _ in self.until_quiet():
            key = random.choice(KEYS)
            await self.call("read", key, self.relay.version(key))

    async def deliver(self, key: str) -> str:
        await asyncio.sleep(random.uniform(0.0, REPLY_SLOT))
        value = f"{self.file.name} {key}"
        return value if await self.relay.deliver(key, value.encode(), ttl=TTL) else ""

    async def receive(self, key: str) -> str:
        await asyncio.sleep(random.uniform(0.0, REPLY_SLOT))
        self.note("receiving", key, time.monotonic())
        return (await self.relay.receive(key, TTL)).decode()

    async def keep_replying(self) -> None:
        """Delivers and receives, in competition with the other processes."""
        slot = int(time.monotonic() / REPLY_SLOT)
        async with asyncio.TaskGroup() as group:
            async for _ in self.until_quiet():
                key, slot = f"reply{slot}", slot + 1
                for each in (self.receive, self.deliver):
                    group.create_task(self.call(each.__name__, key, each(key)))
                await asyncio.sleep(max(0.0, slot * REPLY_SLOT - time.monotonic()))

    async def run(self) -> None:
        seen = last_waits(self.file.parent, self.file.name.partition(".")[0])
        while True:
            with suppress(RelayUnavailable):
                await self.relay.__aenter__()
                break
        async with asyncio.TaskGroup() as group:
            for key in KEYS:
                group.create_task(self.keep_waiting(key, *seen.get(key, (0, None))))
            writers = self.keep_writing, self.keep_writing
            for main in (*writers, self.keep_reading, self.keep_replying):
                group.create_task(main())


if __name__ == "__main__":
    logging.disable()
    url, file, resync, timeout, forget_after = sys.argv[1:]
    options: dict[str, Any] = {"resync": float(resync), "timeout": float(timeout)}
    relay = Relay(url, **options, forget_after=float(forget_after) or None)
    asyncio.run(Worker(relay, Path(file)).run())
