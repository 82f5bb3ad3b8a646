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
        self.open: list[asyncio.StreamWriter] = []
        self.silent: list[asyncio.StreamWriter] = []
        self.tasks: list[asyncio.Task[Any]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        self.open.append(writer)
        with suppress(asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.server.port)
            self.open.append(far_writer)
            both = self.pass_on(reader, far_writer), self.pass_on(far_reader, writer)
            await asyncio.gather(*both)

    async def pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if sink not in self.silent:
                    sink.write(data)
        if sink not in self.silent:
            sink.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        listener = await asyncio.start_server(self.serve, self.host, 0)
        port = listener.sockets[0].getsockname()[1]
        try:
            host = f"[{self.host}]" if ":" in self.host else self.host
            yield self.server.url.replace(f"127.0.0.1:{self.server.port}", f"{host}:{port}")
        finally:
            listener.close()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            for writer in self.open:
                writer.close()
