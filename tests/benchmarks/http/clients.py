"""The clients of ``python tests/benchmarks http``, in a process of their own: plain sockets, one
poll open on each.

They speak as little HTTP as possible, because they share the machine with the server. They also
report how busy they were themselves: clients that are busy all the time only measure themselves.

    python -m benchmarks.http.clients PORT '{"polls": 1000, ...}'

prints one line of JSON for each thing measured.
"""

import asyncio
import json
import random
import sys
import time
from functools import partial
from typing import Any, cast

from benchmarks.cases import run_on
from benchmarks.process import raise_file_limit

WAIT = 3000  # seconds; no poll of the benchmark ends at its deadline
POLLS_PER_KEY = 10
BATCH_OF_CONNECTIONS = 100


class Poller(asyncio.Protocol):
    """One connection, with one poll after the other on it."""

    def __init__(self, clients: "Clients", key: int) -> None:
        self.clients, self.key = clients, key
        self.transport: asyncio.Transport
        self.buffer = b""
        self.seen = 0
        self.is_waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def poll(self) -> None:
        self.is_waiting = True
        self.transport.write(
            b"GET /%s?key=%d&seen=%d&wait=%d HTTP/1.1\r\nHost: bench\r\n\r\n"
            % (self.clients.path, self.key, self.seen, WAIT)
        )

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, ended, body = self.buffer.partition(b"\r\n\r\n")
        if not ended or (head.startswith(b"HTTP/1.1 200") and not body.endswith(b"}")):
            return
        now = time.monotonic()
        self.buffer = b""
        self.is_waiting = False
        if head.startswith(b"HTTP/1.1 200"):
            answer = json.loads(body)
            self.seen = answer["version"]
            self.clients.answered(now - answer["at"])
            if self.clients.polling:
                self.poll()
        else:
            raise RuntimeError(f"the server answered {head[:40]!r}")


class Clients:
    """All connections to one server, and their measurements."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.random = random.Random(seed)
        self.pollers: list[Poller] = []
        self.path = b"ours"
        self.polling = False
        self.latencies: list[float] = []

    def answered(self, latency: float) -> None:
        self.latencies.append(latency)

    async def ask(self, method: str, target: str) -> Any:
        """One request on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(
            f"{method} {target} HTTP/1.1\r\nHost: bench\r\nContent-Length: 0\r\nConnection: "
            "close\r\n\r\n".encode()
        )
        body = (await reader.read()).partition(b"\r\n\r\n")[2]
        writer.close()
        return json.loads(body) if body else None

    async def until_open(self, count: int) -> None:
        while (await self.ask("GET", "/state"))["open"] != count:
            await asyncio.sleep(0.01)

    async def connect(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        while len(self.pollers) < count:
            numbers = range(len(self.pollers), min(count, len(self.pollers) + BATCH_OF_CONNECTIONS))
            protocols = [partial(Poller, self, number // POLLS_PER_KEY) for number in numbers]
            made = [
                loop.create_connection(protocol, "127.0.0.1", self.port) for protocol in protocols
            ]
            self.pollers += [poller for _, poller in await asyncio.gather(*made)]

    async def open_polls(self, path: str) -> None:
        self.path, self.polling = path.encode(), True
        for start in range(0, len(self.pollers), BATCH_OF_CONNECTIONS):
            for poller in self.pollers[start : start + BATCH_OF_CONNECTIONS]:
                poller.poll()
            await asyncio.sleep(0)
        await self.until_open(len(self.pollers))

    async def end_polls(self) -> None:
        """Waits for the answers of all polls, and sends no further polls."""
        self.polling = False
        keys = range(-(-len(self.pollers) // POLLS_PER_KEY))
        for start in range(0, len(keys), BATCH_OF_CONNECTIONS):
            batch = keys[start : start + BATCH_OF_CONNECTIONS]
            await asyncio.gather(*(self.ask("POST", f"/publish?key={key}") for key in batch))
        while any(
            poller.is_waiting for poller in self.pollers
        ):  # the server may have ended a poll whose answer is on its way
            await asyncio.sleep(0.01)

    async def publish(self, rate: float, seconds: float) -> None:
        """Publishes under random keys at random times, whether or not the server keeps up."""
        async with asyncio.TaskGroup() as group:
            end = due = time.monotonic()
            end += seconds
            while (due := due + self.random.expovariate(rate)) < end:
                await asyncio.sleep(due - time.monotonic())
                key = self.random.randrange(-(-len(self.pollers) // POLLS_PER_KEY))
                group.create_task(self.ask("POST", f"/publish?key={key}"))

    async def load(self, path: str, rate: float, seconds: float) -> dict[str, Any]:
        """Opens all polls with one of the handlers, publishes for a while, and ends them."""
        await self.open_polls(path)
        await asyncio.sleep(min(1.0, seconds))
        self.latencies.clear()
        before, cpu, started = (
            await self.ask("GET", "/state"),
            time.process_time(),
            time.monotonic(),
        )
        await self.publish(rate, seconds)
        await self.until_open(len(self.pollers))
        after, passed = await self.ask("GET", "/state"), time.monotonic() - started
        latencies = sorted(self.latencies)
        result = {
            "path": path,
            "answered": len(latencies),
            "cpu": (after["cpu"] - before["cpu"]) / max(1, len(latencies)),
            "server_busy": (after["cpu"] - before["cpu"]) / passed,
            "clients_busy": (time.process_time() - cpu) / passed,
            **{
                f"p{share:g}": latencies[int(share / 100 * (len(latencies) - 1))]
                for share in (50, 99, 99.9)
                if latencies
            },
        }
        await self.end_polls()
        return result


async def measure(clients: Clients, job: dict[str, Any]) -> None:
    """Runs the handlers alternately, and prints the measurements."""
    await clients.connect(job["polls"])
    for number in range(job["rounds"]):
        for path in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
            send({"round": number, **await clients.load(path, job["rate"], job["seconds"])})


def send(result: dict[str, Any]) -> None:
    print(json.dumps(result), flush=True)


def main() -> None:
    port, text = sys.argv[1:]
    job = json.loads(text)
    raise_file_limit()
    run_on(job["loop"], measure(Clients(int(port), job["seed"]), job))


if __name__ == "__main__":
    main()
