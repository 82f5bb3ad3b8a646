"""A process of the oracle: waits for all keys, writes and reads them, and notes each step in a
file, in the form that `oracle_judge` reads.

    python oracle_worker.py URL FOLDER NAME KEYS RESYNC TIMEOUT FORGET_AFTER

Its waits continue from the last versions that an earlier process of the same name noted. Once the
folder has a file `quiet`, it only waits.
"""

import asyncio
import json
import logging
import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from oracle_judge import lines_of

from purgatory import OperationTimeout, RelayUnavailable
from purgatory.relay import Relay

WRITERS = 2
PAUSE = 0.02
"""Average seconds between two writes of a writer."""


class Notes:
    """The log file of a process: one line for each step, written before the next step, so it
    survives a kill."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(
            folder / f"{name}.{time.monotonic_ns()}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND
        )

    def add(self, kind: str, *rest: Any) -> float:
        now = time.monotonic()
        os.write(self._file, json.dumps([now, kind, *rest]).encode() + b"\n")
        return now


def last_seen(folder: Path, name: str, keys: list[str]) -> dict[str, tuple[int, float]]:
    """The last version of each key that processes of this name received, and its time."""
    seen = dict.fromkeys(keys, (0, 0.0))
    for file in sorted(folder.glob(f"{name}.*.log")):
        seen.update({line[2]: (line[3], line[0]) for line in lines_of(file) if line[1] == "answer"})
    return seen


def is_over(folder: Path) -> bool:
    return (folder / "quiet").exists()


async def keep_waiting(relay: Relay, notes: Notes, key: str, seen: int, seen_at: float) -> None:
    while True:
        begun = notes.add("wait", key, seen, seen_at)
        seen = await relay.wait(key, seen)
        seen_at = notes.add("answer", key, seen, begun)


async def keep_writing(relay: Relay, notes: Notes, keys: list[str], folder: Path) -> None:
    while not is_over(folder):
        # Skewed: some keys are written all the time, others are forgotten between writes.
        key = keys[int(len(keys) * random.random() ** 3)]
        begun = notes.add("bump", key)
        try:
            notes.add("bumped", key, await relay.bump(key), begun)
        except RelayUnavailable:
            pass
        await asyncio.sleep(random.uniform(0.0, 2.0 * PAUSE))


async def keep_reading(relay: Relay, notes: Notes, keys: list[str], folder: Path) -> None:
    while not is_over(folder):
        key, begun = random.choice(keys), time.monotonic()
        with suppress(RelayUnavailable):
            notes.add("read", key, await relay.version(key), begun)
        await asyncio.sleep(PAUSE)


REPLY_SLOT = 0.5
"""Length of a slot, in seconds; all processes use the same new keys in a slot."""
REPLIES_PER_SLOT = 3
TTLS = (0.7, 20.0)
"""Times to live, in seconds: the short one expires soon, the long one outlives an outage."""


def reply_keys(slot: int) -> list[tuple[str, float]]:
    """The keys of a slot with the times to live of their replies; the same in all processes."""
    return [(f"reply{slot}.{n}", TTLS[(slot + n) % 2]) for n in range(REPLIES_PER_SLOT)]


async def deliver(relay: Relay, notes: Notes, key: str, ttl: float, value: str) -> None:
    await asyncio.sleep(random.uniform(0.0, REPLY_SLOT))
    begun = notes.add("deliver", key, value, ttl)
    with suppress(RelayUnavailable):
        is_settled = await relay.deliver(key, value.encode(), ttl=ttl)
        notes.add("delivered", key, value, ttl, begun, is_settled)


async def receive(relay: Relay, notes: Notes, key: str, ttl: float) -> None:
    await asyncio.sleep(random.uniform(0.0, REPLY_SLOT))
    begun = notes.add("receive", key)
    try:
        value = await relay.receive(key, 2.0 * TTLS[1])
    except TimeoutError:
        value = None
    notes.add("received", key, value and value.decode(), begun)
    await asyncio.sleep(random.choice((0.0, ttl - 0.3, ttl + 0.3)))
    begun = time.monotonic()
    try:
        found: str | None = (await relay.receive(key, 0)).decode()
    except OperationTimeout as error:
        if error.__cause__ is not None:  # the store was unreachable
            return
        found = None
    notes.add("asked", key, found, begun)


async def keep_replying(relay: Relay, notes: Notes, name: str, folder: Path) -> None:
    """Delivers to new keys, in competition with the other processes, and receives the replies."""
    slot = int(time.monotonic() / REPLY_SLOT)
    async with asyncio.TaskGroup() as group:
        while not is_over(folder):
            for key, ttl in reply_keys(slot):
                value = f"{name} {os.getpid()} {slot}"
                group.create_task(receive(relay, notes, key, ttl))
                group.create_task(deliver(relay, notes, key, ttl, value))
            slot += 1
            await asyncio.sleep(max(0.0, slot * REPLY_SLOT - time.monotonic()))


async def main(url: str, folder: Path, name: str, count: int, *seconds: float) -> None:
    resync, timeout, forget_after = seconds
    keys = [f"key{number}" for number in range(count)]
    seen = last_seen(folder, name, keys)
    notes = Notes(folder, name)
    relay = Relay(url, resync=resync, timeout=timeout, forget_after=forget_after or None)
    while True:
        with suppress(RelayUnavailable):
            await relay.__aenter__()
            break
    async with asyncio.TaskGroup() as group:
        for key, (version, at) in seen.items():
            group.create_task(keep_waiting(relay, notes, key, version, at))
        for _ in range(WRITERS):
            group.create_task(keep_writing(relay, notes, keys, folder))
        group.create_task(keep_reading(relay, notes, keys, folder))
        group.create_task(keep_replying(relay, notes, name, folder))


if __name__ == "__main__":
    logging.disable()
    url, folder, name, count, *seconds = sys.argv[1:]
    asyncio.run(main(url, Path(folder), name, int(count), *map(float, seconds)))
