"""A plain TCP server: a client that sends the name of a job gets a line when the job is done.

python examples/recipes/with_tcp.py
nc 127.0.0.1 8000                 # get 7            waits for the result of job 7: "+done", "-timeout" or "-stopping"
nc 127.0.0.1 8000                 # put 7 done       brings the result: "+"
"""

import asyncio
import signal
from typing import Any

from purgatory import OperationCancelled, OperationTimeout, Purgatory, PurgatoryClosed

TIMEOUT = 20.0  # seconds

jobs: Purgatory[Any] = Purgatory("jobs")
results: dict[str, str] = {}
asking: set[asyncio.StreamWriter] = set()
"""Clients that wait for their answer."""


async def answer(command: str, name: str = "", value: str = "") -> str:
    if command == "put":
        results[name] = value
        jobs.check_and_complete(name)
        return "+"
    try:
        return "+" + await jobs.wait_for(lambda: results.get(name), [name], timeout=TIMEOUT)
    except OperationTimeout:
        return "-timeout"
    except (OperationCancelled, PurgatoryClosed):
        return "-stopping"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    words = (await reader.readline()).decode().strip().split(maxsplit=2) or [""]
    asking.add(writer)
    answering = asyncio.create_task(answer(*words))
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
        asking.discard(writer)


async def main(port: int = 8000) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await stop.wait()
    server.close()  # no new connections
    await jobs.aclose()  # an answer for each waiting client
    await asyncio.gather(*(each.wait_closed() for each in asking), return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
