"""An address in front of a server, with connections that a test controls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any


class Proxy:
    """Passes on data, until it drops all data of the present connections without closing them, as
    a firewall may. A new `server` gets the connections from then on."""

    def __init__(self, server: Any, host: str = "127.0.0.1") -> None:
        self.server, self.host = server, host
        self.open: list[list[asyncio.StreamWriter]] = []
        self.silent: list[list[asyncio.StreamWriter]] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.connecting = 0
        self.has_ended = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        both = [writer]
        self.open.append(both)
        self.connecting += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        finally:
            self.connecting -= 1
        if self.has_ended:
            writer.close()
            far_writer.close()
            return
        both.append(far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self.pass_on(source, sink, both))
            self.tasks.add(task)

    async def pass_on(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        both: list[asyncio.StreamWriter],
    ) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if both not in self.silent:
                    sink.write(data)
        if both not in self.silent:
            sink.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        listener = await asyncio.start_server(self.serve, self.host, 0)
        port = listener.sockets[0].getsockname()[1]
        try:
            host = f"[{self.host}]" if ":" in self.host else self.host
            yield self.server.url.replace(f"127.0.0.1:{self.server.port}", f"{host}:{port}")
        finally:
            self.has_ended = True
            listener.close()
            for task in self.tasks:
                task.cancel()
            for both in self.open:
                for writer in both:
                    writer.close()
            await asyncio.sleep(0.01)
            while self.connecting:
                await asyncio.sleep(0.01)
