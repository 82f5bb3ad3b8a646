"""The client of one request: the only reader of its receive channel, which keeps what it reads and hears the client leave.

An ASGI server tells an application that the client has left through the same channel that brings the body. A wait must
listen there, and may then be handed a piece of the body, which is not meant for it. Two readers would take
messages from each other, and a reader behind a middleware that wraps `receive` hears what the middleware makes of it.
So the outermost layer puts a `Client` in front of the channel, and everybody else asks the `Client`:

    the server              Client                  who asks
    http.request "par"  ->  kept: "par"             attend: reads on, and keeps
    http.request "t"    ->  kept: "par", "t"        receive -> "par", and then "t"
    http.disconnect     ->  gone                    attend: tells who attends;  receive -> http.disconnect, now and for ever

With a WebSocket it is the same: what the client has sent is kept, a message is a `websocket.receive`, and the last one a
`websocket.disconnect`, with its code.

One of the waiting tasks reads, and the others wait for what it reads; if it is cancelled, another one takes over. The
end of the body is not the end of the client: only a disconnect is.
"""

from asyncio import CancelledError, Future, Task, get_running_loop
from typing import Final, Protocol, final

from purgatory.asgi._types import Message, Receive

MESSAGE_BYTES: Final = 256
"""What a message takes besides its body, at least: keeping single bytes is not free either."""

READ_AHEAD: Final = 256 * 1024
"""Bytes that are kept by default. With more than this kept, nobody reads on before the application has taken
something: the server then slows the client down, as it would without us, and that the client has left is noticed after that."""


def end_of_body() -> Message:
    """The last message of a body, with nothing in it."""
    return {"type": "http.request", "body": b"", "more_body": False}


def bytes_of(message: Message) -> int:
    """What a message counts for."""
    return MESSAGE_BYTES + sum(len(message.get(part) or b"") for part in ("body", "bytes", "text"))


class Attendant(Protocol):
    """Who attends a client."""

    def client_left(self) -> None:
        """Called once, when the client has left, or when its channel has failed."""

    def request_ended(self) -> None:
        """Called once, when the application has returned."""


@final
class Client:
    """What stands between a server's `receive` and everything that would call it.

    Args:
        receive: the server's.
        read_ahead: how many bytes may be kept, each message counted as `MESSAGE_BYTES` at least, before reading stops.
    """

    __slots__ = (
        "_attendants",
        "_farewell",
        "_has_ended",
        "_kept",
        "_kept_bytes",
        "_listener",
        "_read_ahead",
        "_reading",
        "_receive",
        "_waiting",
        "error",
        "gone",
    )

    def __init__(self, receive: Receive, read_ahead: int = READ_AHEAD) -> None:
        self._receive = receive
        self._read_ahead = read_ahead
        self._kept: list[Message] | None = None
        self._kept_bytes = 0
        self._has_ended = False
        """Whether the last message that is kept is the end of the body, with nothing in it. Most requests have no more than
        that, and while they wait, a flag takes less than a message."""
        self._reading = False
        self._waiting: list[Future[None]] | None = None
        self._listener: Task[None] | None = None
        self._attendants: tuple[Attendant, ...] = ()
        self.gone = False
        """Whether the client is known to have left."""
        self._farewell: Message | None = None
        """The message that said so, which is the answer to whoever reads from then on."""
        self.error: Exception | None = None
        """What the server's `receive` has raised to the listener."""

    async def receive(self) -> Message:
        """The next message for the application: what was kept, or else what the server has. As ASGI's `receive`."""
        while not self._kept:
            if self._has_ended:
                self._has_ended = False
                return end_of_body()
            if self._farewell is not None:
                return {**self._farewell}
            if self._reading:
                await self._change()
            else:
                self._reading = True
                try:
                    self._keep(await self._receive())
                finally:
                    self._has_read()
        message = self._kept.pop(0)
        self._kept_bytes -= bytes_of(message)
        self._tell()
        return message

    def attend(self, attendant: Attendant) -> None:
        """Listens for the client to leave, and then tells `attendant`, unless `gone` is true already.

        Raises:
            Exception: the channel has failed before.
        """
        if self.error is not None:
            raise self.error
        self._attendants += (attendant,)
        if self._listener is None and not self.gone:
            self._listener = get_running_loop().create_task(self._listen(), name="purgatory.asgi: listens to a client")

    def ignore(self, attendant: Attendant) -> None:
        """No longer tells `attendant`. The listener goes on, for the next one, until `close`."""
        self._attendants = tuple(other for other in self._attendants if other is not attendant)

    def close(self) -> None:
        """Stops listening: the application has returned, and nobody will read what is kept."""
        if self._listener is not None:
            self._listener.cancel()
        attendants, self._attendants = self._attendants, ()
        for attendant in attendants:
            attendant.request_ended()

    async def _listen(self) -> None:
        try:
            while not self.gone:
                if self._reading or self._kept_bytes > self._read_ahead:
                    await self._change()
                    continue
                self._reading = True
                try:
                    self._keep(await self._receive())
                finally:
                    self._has_read()
        except CancelledError:  # by `close`; kept in the task, its traceback would hold the client, and so the task
            return
        except Exception as error:
            self.error = error
        for attendant in self._attendants:
            attendant.client_left()

    def _keep(self, message: Message) -> None:
        if message["type"] in ("http.disconnect", "websocket.disconnect"):
            self.gone, self._farewell = True, message
        elif message["type"] == "http.request" and not (message.get("body") or message.get("more_body")):
            self._has_ended = True
        else:
            if self._kept is None:
                self._kept = []
            if self._has_ended:  # something new in ASGI, which comes after the body
                self._has_ended = False
                self._kept.append(end_of_body())
                self._kept_bytes += MESSAGE_BYTES
            self._kept.append(message)
            self._kept_bytes += bytes_of(message)

    def _has_read(self) -> None:
        self._reading = False
        self._tell()

    async def _change(self) -> None:
        """Waits until something was read or taken, or the reader has given up."""
        future = get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = []
        self._waiting.append(future)
        await future

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, None
        for future in waiting or ():
            if not future.done():
                future.set_result(None)
