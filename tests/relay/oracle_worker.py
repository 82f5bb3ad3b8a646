"""A process of the oracle: waits for all keys, writes and reads them, and notes each call in a
file, in the form that `oracle_judge` reads.

    python oracle_worker.py URL FILE KEYS RESYNC TIMEOUT FORGET_AFTER

Its waits continue from the last versions that an earlier process of its name noted. Once the folder
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
from itertools import count
from pathlib import Path
from typing import Any

from oracle_judge import calls_of

from purgatory import OperationTimeout, RelayUnavailable
from purgatory.relay import Relay

WRITERS = 2
PAUSE = 0.02
"""Average seconds between two writes of a writer."""
REPLY_SLOT = 0.5
"""Length of a slot, in seconds; all processes use the same new keys in a slot."""
REPLIES_PER_SLOT = 3
TTLS = (0.7, 20.0)
"""Times to live, in seconds: the short one expires soon, the long one outlives an outage."""


class Worker:
    def __init__(self, relay: Relay, file: Path, keys: int) -> None:
        self.relay, self.file = relay, file
        self.keys = [f"key{number}" for number in range(keys)]
        self.numbers = count()
        self.log = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def note(self, number: int, *rest: Any) -> float:
        """Writes a line before the next step, so that it survives a kill."""
        now = time.monotonic()
        os.write(self.log, json.dumps([number, now, *rest]).encode() + b"\n")
        return now

    async def call(self, kind: str, key: str, answer: Awaitable[Any], *given: Any) -> Any:
        """Notes a call, and its answer unless the store is away."""
        number = next(self.numbers)
        self.note(number, kind, key, given)
        found = None
        try:
            found = await answer
        except RelayUnavailable:
            return None
        except OperationTimeout as error:
            if kind == "ask" and error.__cause__ is not None:  # the store was unreachable
                return None
        self.note(number, found.decode() if isinstance(found, bytes) else found)
        return found

    async def until_quiet(self) -> AsyncIterator[None]:
        while not (self.file.parent / "quiet").exists():
            yield
            await asyncio.sleep(random.uniform(0.0, 2.0 * PAUSE))

    async def keep_waiting(self, key: str, seen: int, seen_at: float) -> None:
        while True:
            seen = await self.call("wait", key, self.relay.wait(key, seen), seen, seen_at)
            seen_at = time.monotonic()

    async def keep_writing(self) -> None:
        async for _ in self.until_quiet():
            # Skewed: some keys are written all the time, others are forgotten between writes.
            key = self.keys[int(len(self.keys) * random.random() ** 3)]
            await self.call("bump", key, self.relay.bump(key))

    async def keep_reading(self) -> None:
        async for _ in self.until_quiet():
            key = random.choice(self.keys)
            await self.call("read", key, self.relay.version(key))

    async def deliver(self, key: str, ttl: float) -> None:
        await asyncio.sleep(random.uniform(0.0, REPLY_SLOT))
        value = f"{self.file.name} {key}"
        answer = self.relay.deliver(key, value.encode(), ttl=ttl)
        await self.call("deliver", key, answer, value, ttl)

    async def receive(self, key: str, ttl: float) -> None:
        await asyncio.sleep(random.uniform(0.0, REPLY_SLOT))
        await self.call("receive", key, self.relay.receive(key, 2.0 * TTLS[1]))
        await asyncio.sleep(random.choice((0.0, ttl - 0.3, ttl + 0.3)))
        await self.call("ask", key, self.relay.receive(key, 0))

    async def keep_replying(self) -> None:
        """Delivers to new keys, in competition with the other processes, and receives the replies."""
        slot = int(time.monotonic() / REPLY_SLOT)
        async with asyncio.TaskGroup() as group:
            async for _ in self.until_quiet():
                for number in range(REPLIES_PER_SLOT):
                    reply = f"reply{slot}.{number}", TTLS[(slot + number) % 2]
                    group.create_task(self.receive(*reply))
                    group.create_task(self.deliver(*reply))
                slot += 1
                await asyncio.sleep(max(0.0, slot * REPLY_SLOT - time.monotonic()))

    async def run(self) -> None:
        seen = dict.fromkeys(self.keys, (0, 0.0))
        name = self.file.name.partition(".")[0]
        for file in sorted(self.file.parent.glob(f"{name}.*")):
            waits = (call for call in calls_of(file, 0.0) if call.kind == "wait")
            seen |= {call.key: (call.answer, call.ended) for call in waits if call.is_answered}
        while True:
            with suppress(RelayUnavailable):
                await self.relay.__aenter__()
                break
        async with asyncio.TaskGroup() as group:
            for key, last in seen.items():
                group.create_task(self.keep_waiting(key, *last))
            for main in [*[self.keep_writing] * WRITERS, self.keep_reading, self.keep_replying]:
                group.create_task(main())


if __name__ == "__main__":
    logging.disable()
    url, file, keys, resync, timeout, forget_after = sys.argv[1:]
    options: dict[str, Any] = {"resync": float(resync), "timeout": float(timeout)}
    relay = Relay(url, **options, forget_after=float(forget_after) or None)
    asyncio.run(Worker(relay, Path(file), int(keys)).run())
