"""A process of the oracle: waits for all keys, writes and reads them, and notes each step in a file, as the oracle judges it.

    python oracle_worker.py URL FOLDER NAME KEYS RESYNC TIMEOUT FORGET_AFTER

It goes on waiting where the last process of that name had stopped. Once there is a file `quiet` in the folder it only waits.
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

from purgatory import RelayUnavailable
from purgatory.relay import Relay

WRITERS = 2
PAUSE = 0.02
"""Seconds between two writes of a writer, on average."""


class Notes:
    """The file of a process: a line for each step, written before the next one begins, so that it survives a kill."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / f"{name}.{time.monotonic_ns()}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def add(self, kind: str, *rest: Any) -> float:
        now = time.monotonic()
        os.write(self._file, json.dumps([now, kind, *rest]).encode() + b"\n")
        return now


def last_seen(folder: Path, name: str, keys: list[str]) -> dict[str, tuple[int, float]]:
    """The last version of each key that processes of this name were answered with, and when."""
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
        # Some keys are written all the time, others are forgotten in between.
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


async def main(url: str, folder: Path, name: str, count: int, resync: float, timeout: float, forget_after: float) -> None:
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


if __name__ == "__main__":
    logging.disable()
    url, folder, name, count, *seconds = sys.argv[1:]
    asyncio.run(main(url, Path(folder), name, int(count), *map(float, seconds)))
