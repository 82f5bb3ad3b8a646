"""The failure soak: four processes, two thousand waits, and a store that fails in every way.

    python tests/relay/relay_soak.py [--seconds 30] [--waits 2000] [--scenario NAME] [--resync 5]
    [--forget-after 0]

In each scenario three processes wait and one writes, while failures are injected into the store or
its connections. Then the failures end, the writer stops, and every wait must receive the last
version. It prints a row for each scenario: answers, failed writes, errors (early answers, keys with
waits that missed the last version, and numbers that repeat within one epoch), seconds from a write
to its answer, and the relays' statistics. It exits with 1 after any error.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from servers import TIMEOUT, NatsServer, PostgresServer, RedisServer

WORKER = Path(__file__).with_name("soak_worker.py")


@dataclass
class Process:
    """A process of the soak, and the lines that it has printed."""

    child: asyncio.subprocess.Process
    lines: list[dict[str, Any]] = field(default_factory=list)
    reading: "asyncio.Task[None] | None" = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> None:
        assert self.child.stdout is not None
        while line := await self.child.stdout.readline():
            self.lines.append(json.loads(line))
            self.ready.set()

    async def end(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        await asyncio.wait_for(self.child.wait(), TIMEOUT)
        assert self.reading is not None
        await self.reading


async def start(
    role: str, url: str, first: int, count: int, resync: float, forget_after: float
) -> Process:
    pipe = asyncio.subprocess.PIPE
    words = (role, url, str(first), str(count), str(resync), str(forget_after))
    process = Process(
        await asyncio.create_subprocess_exec(
            sys.executable, str(WORKER), *words, stdin=pipe, stdout=pipe, limit=1 << 24
        )
    )
    process.reading = asyncio.create_task(process.read())
    await asyncio.wait_for(process.ready.wait(), TIMEOUT)
    return process


# -- failures, each repeated until the time is over


async def killed_and_restarted(server: Any) -> None:
    server.kill()
    await asyncio.sleep(random.uniform(0.1, 1.0))
    await asyncio.to_thread(server.start)
    await asyncio.sleep(3.0)


async def connections_killed(server: Any) -> None:
    if isinstance(server, RedisServer):
        for kind in ("pubsub", "normal"):
            server.ask("CLIENT", "KILL", "TYPE", kind)
    else:
        await asyncio.to_thread(end_backends, server)
    await asyncio.sleep(0.3)


def end_backends(server: PostgresServer) -> None:
    import asyncpg

    async def end() -> None:
        connection = await asyncpg.connect(server.url)
        query = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
            "'purgatory.relay'"
        )
        await connection.execute(query)
        await connection.close()

    asyncio.run(end())


async def paused(server: Any) -> None:
    server.pause()
    await asyncio.sleep(5.0)
    server.resume()
    await asyncio.sleep(3.0)


async def flushed(server: RedisServer) -> None:
    await asyncio.sleep(3.0)
    server.ask("FLUSHALL")


async def purged(server: NatsServer) -> None:
    await asyncio.sleep(3.0)
    server.publish("$JS.API.STREAM.PURGE.purgatory_versions")


async def rolled_back(server: RedisServer) -> None:
    server.ask("SAVE")
    await asyncio.sleep(2.0)
    server.kill()
    await asyncio.to_thread(server.start)
    await asyncio.sleep(2.0)


async def deleted(folder: Path) -> None:
    await asyncio.sleep(2.0)
    remove_sockets(folder)
    await asyncio.sleep(2.0)
    remove(folder)


def remove(folder: Path) -> None:
    """Removes a folder in one step: SQLite breaks if other processes create new files while the old
    ones are deleted one by one."""
    if folder.exists():
        shutil.rmtree(folder.rename(folder.with_name(f"gone-{time.monotonic_ns()}")))


def remove_sockets(folder: Path) -> None:
    for path in folder.glob("*.sock"):
        path.unlink(missing_ok=True)


async def nothing(_: Any) -> None:
    await asyncio.sleep(0.1)


SCENARIOS: dict[str, tuple[str, Callable[[Any], Awaitable[None]]]] = {
    "file: nothing": ("file", nothing),
    "file: deleted": ("file", deleted),
    "redis: nothing": ("redis", nothing),
    "redis: killed": ("redis", killed_and_restarted),
    "redis: connections killed": ("redis", connections_killed),
    "redis: paused": ("redis", paused),
    "redis: flushed": ("redis", flushed),
    "redis: rolled back": ("redis", rolled_back),
    "postgresql: nothing": ("postgresql", nothing),
    "postgresql: killed": ("postgresql", killed_and_restarted),
    "postgresql: connections killed": ("postgresql", connections_killed),
    "postgresql: paused": ("postgresql", paused),
    "nats: nothing": ("nats", nothing),
    "nats: killed": ("nats", killed_and_restarted),
    "nats: paused": ("nats", paused),
    "nats: purged": ("nats", purged),
}


@dataclass
class Result:
    """The row of a scenario."""

    answers: int
    failed: int
    early: int
    behind: int
    twice: int
    p50: float
    p99: float
    longest: float
    healed: int
    resyncs: int
    epochs: int


async def soak(
    name: str, seconds: float, waits: int, resync: float, forget_after: float = 0.0
) -> Result:
    kind, fail = SCENARIOS[name]
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = Path(temporary) / "app"
        server: Any = None
        if kind == "redis":
            server = RedisServer(
                Path(temporary),
                "--appendonly",
                "no" if "rolled" in name else "yes",
                "--appendfsync",
                "always",
            )
            url = server.start().url
        elif kind == "postgresql":
            server = PostgresServer()
            url = server.start().url
        elif kind == "nats":
            server = NatsServer(Path(temporary))
            url = server.start().url
        else:
            url = f"file://{folder}"
        try:
            return await run(url, fail, server or folder, seconds, waits, resync, forget_after)
        finally:
            if server is not None:
                server.kill()
            if isinstance(server, PostgresServer):
                server.remove()


async def run(
    url: str,
    fail: Callable[[Any], Awaitable[None]],
    store: Any,
    seconds: float,
    waits: int,
    resync: float,
    forget_after: float,
) -> Result:
    keys = max(1, waits // 3)
    writer = await start("write", url, 0, keys, resync, forget_after)
    waiters = [await start("wait", url, 0, keys, resync, forget_after) for _ in range(3)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await fail(store)
    await writer.end()
    for process in waiters:
        await process.end()
    return judge(writer, waiters)


def judge(writer: Process, waiters: list[Process]) -> Result:
    written = {
        (line["epoch"], line["key"], line["version"]): line["at"]
        for line in writer.lines
        if "key" in line
    }
    writes = [line for line in writer.lines if "key" in line]
    newest: dict[str, int] = {}
    twice = 0
    if len({line["epoch"] for line in writes}) == 1:  # a writer's epoch may be outdated
        newest = {line["key"]: line["version"] for line in writes}
        twice = len(writes) - len(written)
    latencies: list[float] = []
    early = behind = answers = 0
    for process in waiters:
        known: dict[str, int] = {}
        for line in process.lines:
            if "key" in line:
                answers += 1
                known[line["key"]] = line["version"]
                at = written.get((line["epoch"], line["key"], line["version"]))
                if at is not None:
                    latencies.append(max(0.0, line["at"] - at))
            early += "early" in line
        [last] = [line for line in process.lines if "last" in line]
        behind += sum(known.get(key, 0) != version for key, version in last["last"].items())
        if not last["last"]:
            behind += sum(known.get(key, 0) < version for key, version in newest.items())
    latencies.sort()
    numbers = [
        line["statistics"] for process in waiters for line in process.lines if "statistics" in line
    ]
    return Result(
        answers=answers,
        failed=sum("failed" in line for line in writer.lines),
        early=early,
        behind=behind,
        twice=twice,
        p50=latencies[len(latencies) // 2] if latencies else 0.0,
        p99=latencies[int(len(latencies) * 0.99)] if latencies else 0.0,
        longest=latencies[-1] if latencies else 0.0,
        healed=sum(number["healed"] for number in numbers),
        resyncs=sum(number["resyncs"] for number in numbers),
        epochs=max(number["epochs"] for number in numbers),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Injects failures into stores of relays, and counts waits that miss a version."
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of failures in each scenario (default: 30)"
    )
    parser.add_argument(
        "--waits", type=int, default=2000, help="in all processes together (default: 2000)"
    )
    parser.add_argument(
        "--resync", type=float, default=5.0, help="of the relays, in seconds (default: 5)"
    )
    parser.add_argument(
        "--forget-after",
        type=float,
        default=0.0,
        help="seconds after which keys are forgotten (default: 0, never)",
    )
    parser.add_argument(
        "--scenario", choices=SCENARIOS, action="append", help="only this; may be repeated"
    )
    options = parser.parse_args()
    names = [each.name for each in fields(Result)]
    print(f"{'':32}", *(f"{name:>8}" for name in names))
    bad = 0
    for name in options.scenario or SCENARIOS:
        result = asyncio.run(
            soak(name, options.seconds, options.waits, options.resync, options.forget_after)
        )
        bad += result.early + result.behind + result.twice
        cells = [
            value if isinstance(value, int) else f"{value:.3f}"
            for value in (getattr(result, name) for name in names)
        ]
        print(f"{name:32}", *(f"{cell:>8}" for cell in cells), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
