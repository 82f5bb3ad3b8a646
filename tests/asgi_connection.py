"""A client's side of one HTTP connection, by hand, for the tests against real servers."""

import asyncio


class Connection:
    """One that stays open between requests, and ends as badly as one likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, target: str, method: str = "GET", headers: str = "", body: bytes = b"") -> None:
        is_chunked = "transfer-encoding" in headers
        if body or (method == "POST" and not is_chunked):
            headers += f"content-length: {len(body)}\r\n"
        head = f"{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}\r\n"
        self.writer.write(head.encode() + body)

    async def answer(self, first: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        """The next answer on the connection, whose `first` bytes were read: status, headers and
        body."""
        head = (first + await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        status = int(status_line.split()[1])
        if status in (204, 304):
            return status, headers, b""
        if "content-length" in headers:
            return status, headers, await self.reader.readexactly(int(headers["content-length"]))
        chunks = []
        while size := int(await self.reader.readline(), 16):
            chunks.append(await self.reader.readexactly(size + 2))
        await self.reader.readline()
        return status, headers, b"".join(chunk[:-2] for chunk in chunks)

    def hang_up(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()
