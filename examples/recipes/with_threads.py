"""Plain TCP, as in `with_tcp.py`, on an event loop in each of several threads, which share their
waits: a change that one thread makes answers the clients of all. On a Python without a GIL each
thread uses a core. For Unix: Windows has no `sigwait`.

python examples/recipes/with_threads.py
nc 127.0.0.1 8000                 # get 7            waits for the result of job 7: "+done", "-timeout" or "-stopping"
nc 127.0.0.1 8000                 # put 7 done       brings the result: "+"
"""

import asyncio
import os
import signal
import socket
import threading
from typing import Any

from purgatory import OperationCancelled, OperationTimeout, Purgatory, PurgatoryClosed

TIMEOUT = 20.0  # seconds

results: dict[str, str] = {}
purgatories: list[Purgatory[Any]] = []
"""One for each loop, because a purgatory belongs to a loop."""


def finish(name: str, value: str) -> None:
    """From any thread: the value first, then a check of its key on each loop."""
    results[name] = value
    for jobs in purgatories:
        jobs.check_and_complete_threadsafe(name)


async def answer(jobs: Purgatory[Any], command: str, name: str = "", value: str = "") -> str:
    if command == "put":
        finish(name, value)
        return "+"
    try:
        return "+" + await jobs.wait_for(lambda: results.get(name), [name], timeout=TIMEOUT)
    except OperationTimeout:
        return "-timeout"
    except (OperationCancelled, PurgatoryClosed):
        return "-stopping"


class Server(threading.Thread):
    """A thread with a loop, and a purgatory of its own, which accepts clients of `listener`."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__()
        self.listener = listener
        self.jobs: Purgatory[Any] = Purgatory(self.name)
        purgatories.append(self.jobs)
        self.loop = asyncio.new_event_loop()
        self.stopping = asyncio.Event()
        self.asking: set[asyncio.StreamWriter] = set()
        """Clients that wait for their answer."""

    def run(self) -> None:
        """Runs the loop in the new thread."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self.main())

    async def main(self) -> None:
        """Serves until `stop` is called."""
        server = await asyncio.start_server(self.serve, sock=self.listener.dup())
        await self.stopping.wait()
        server.close()  # no new connections
        await self.jobs.aclose()  # an answer for each waiting client
        await asyncio.gather(*(each.wait_closed() for each in self.asking), return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one client."""
        words = (await reader.readline()).decode().strip().split(maxsplit=2) or [""]
        self.asking.add(writer)
        answering = asyncio.create_task(answer(self.jobs, *words))
        leaving = asyncio.create_task(reader.read(1))  # the client sends nothing more
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                writer.write(answering.result().encode() + b"\n")
                await writer.drain()
        finally:
            answering.cancel()
            leaving.cancel()
            writer.close()
            self.asking.discard(writer)

    def stop(self) -> None:
        """Ends the server; from any thread."""
        self.loop.call_soon_threadsafe(self.stopping.set)


def main(port: int = 8000, threads: int = os.cpu_count() or 1) -> None:
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # in the threads, too: `sigwait` gets them
    with socket.create_server(("127.0.0.1", port)) as listener:
        servers = [Server(listener) for _ in range(threads)]
        for server in servers:
            server.start()
        signal.sigwait(stops)
        for server in servers:
            server.stop()
        for server in servers:
            server.join()


if __name__ == "__main__":
    main()
