"""A process of the soak: waits for versions of keys, or writes them, and tells what it saw in JSON, a line each.

    python soak_worker.py wait  URL  FIRST_KEY  KEYS  RESYNC
    python soak_worker.py write URL  FIRST_KEY  KEYS  RESYNC

A waiter has one wait on each key, for the next version after the one that it has seen. A writer bumps random keys.
"""

import asyncio
import json
import logging
import random
import sys
import time
from dataclasses import asdict
from typing import Any

from purgatory import RelayUnavailable
from purgatory.relay import Relay


def say(**what: Any) -> None:
    print(json.dumps({"at": time.time(), **what}), flush=True)


async def keep_waiting(relay: Relay, key: str) -> None:
    seen, epoch = 0, relay.epoch
    while True:
        version = await relay.wait(key, seen)
        if version <= seen and relay.epoch == epoch:
            say(early=key, seen=seen, version=version)
        seen, epoch = version, relay.epoch
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


async def main(role: str, url: str, first: int, count: int, resync: float) -> None:
    keys = [f"key{number}" for number in range(first, first + count)]
    async with Relay(url, resync=resync, timeout=2.0) as relay, asyncio.TaskGroup() as group:
        say(ready=role)
        if role == "write":
            group.create_task(keep_writing(relay, keys))
        else:
            for key in keys:
                group.create_task(keep_waiting(relay, key))
        end = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(sys.stdin, lambda: end.done() or end.set_result(None))
        await end
        # What stands in the end, by the store itself, and what this process knows of it.
        versions = {key: await relay.version(key) for key in keys}
        say(stands=versions, epoch=relay.epoch, statistics=asdict(relay.statistics()))
        sys.stdout.flush()
        raise SystemExit(0)


if __name__ == "__main__":
    logging.disable()
    role, url, first, count, resync = sys.argv[1:]
    try:
        asyncio.run(main(role, url, int(first), int(count), float(resync)))
    except BaseExceptionGroup:
        sys.exit(0)
