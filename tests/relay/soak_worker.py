"""A process of the soak: waits for versions of keys, or writes them, and prints its observations
as lines of JSON.

    python soak_worker.py wait  URL  FIRST_KEY  KEYS  RESYNC  FORGET_AFTER
    python soak_worker.py write URL  FIRST_KEY  KEYS  RESYNC  FORGET_AFTER

A waiter has one wait on each key, for a version above the last one it saw. A writer bumps random
keys. At the end of its standard input a writer exits; a waiter reads the last versions, waits until
it has seen them, for `LIMIT` at most, and prints them. With FORGET_AFTER above 0 keys are forgotten
after that many seconds, and a read may return the floor, which was never written; so the waiter
waits for a resync instead, and prints no versions.
"""

import asyncio
import json
import logging
import random
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from purgatory import RelayUnavailable
from purgatory.relay import Relay

LIMIT = 60.0
"""Longest wait for the last versions, in seconds; above the time of a busy machine."""


def say(**what: Any) -> None:
    print(json.dumps({"at": time.time(), **what}), flush=True)


async def keep_waiting(relay: Relay, key: str, seen: dict[str, int]) -> None:
    epoch = relay.epoch
    while True:
        version = await relay.wait(key, seen[key])
        if version <= seen[key] and relay.epoch == epoch:
            say(early=key, seen=seen[key], version=version)
        seen[key], epoch = version, relay.epoch
        say(key=key, version=version, epoch=epoch)


async def keep_writing(relay: Relay, keys: list[str]) -> None:
    while True:
        key = random.choice(keys)
        try:
            version = await relay.bump(key)
        except RelayUnavailable:
            say(failed=key)
        else:
            say(key=key, version=version, epoch=relay.epoch)
        await asyncio.sleep(0.002)


async def last_version(relay: Relay, key: str) -> int:
    while True:
        try:
            return await relay.version(key)
        except RelayUnavailable:
            pass


async def main(
    role: str, url: str, first: int, count: int, resync: float, forget_after: float
) -> None:
    seen = {f"key{number}": 0 for number in range(first, first + count)}
    relay = Relay(url, resync=resync, timeout=2.0, forget_after=forget_after or None)
    while True:
        with suppress(RelayUnavailable):
            await relay.__aenter__()
            break
    async with asyncio.TaskGroup() as group:
        say(ready=role)
        if role == "write":
            group.create_task(keep_writing(relay, list(seen)))
        else:
            for key in seen:
                group.create_task(keep_waiting(relay, key, seen))
        end = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(sys.stdin, lambda: end.done() or end.set_result(None))
        await end
        if role == "wait":
            if forget_after:
                await asyncio.sleep(resync + 3.0)
            versions = {} if forget_after else {key: await last_version(relay, key) for key in seen}
            with suppress(TimeoutError):
                async with asyncio.timeout(LIMIT):
                    while versions and seen != versions:
                        await asyncio.sleep(0.01)
            say(last=versions, statistics=asdict(relay.statistics()))
        sys.stdout.flush()
        raise SystemExit(0)


if __name__ == "__main__":
    logging.disable()
    role, url, first, count, resync, forget_after = sys.argv[1:]
    try:
        asyncio.run(main(role, url, int(first), int(count), float(resync), float(forget_after)))
    except BaseExceptionGroup:
        sys.exit(0)
