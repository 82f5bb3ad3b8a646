"""A request as its poll sees it: the wait that it asks for, and its client.

**The wait**: `Prefer: wait=20` (RFC 7240), or a parameter of the query, `?wait=20`.

    requested      max_wait    spread    effective                response
    wait=20        60          0         20                       Preference-Applied: wait=20
    wait=600       60          0         60                       Preference-Applied: wait=60
    wait=60        60          1/16      between 56.25 and 60     Preference-Applied: wait=58,
                                                                  rounded up
    nothing        60          0         default_wait

Polls that started together, after a restart for instance, would all come back at once, again and
again: `spread` shortens each wait by up to that fraction. Consul adds up to a sixteenth, but in RFC
7240 the client names an upper bound, after which it may have disconnected.

RFC 7240 has a server ignore a preference that it does not understand, so a malformed `Prefer`
counts as none. A parameter is part of the request, and a malformed one is an error.

**The client** is the only reader of the server's `receive`. It buffers the body and notices a
disconnect.

An ASGI server announces a disconnect through the channel that also brings the body. So a wait must
read that channel, and may get a piece of the body, which the application needs. Two readers would
take messages from each other, and a reader behind middleware that wraps `receive` sees only the
messages that the middleware passes on. So the outermost layer puts a `Client` in front of the
channel, and everything else asks the `Client`:

    the server              Client                    caller
    http.request "par"  ->  buffer: "par"             a wait has the client read on
    http.request "t"    ->  buffer: "par", "t"        receive -> "par", and then "t"
    http.disconnect     ->  disconnected              listeners are notified; from now on
                                                      receive -> http.disconnect

A WebSocket works the same way: its messages are `websocket.receive`, and the last one is a
    `websocket.disconnect` with a code.

One of the waiting tasks reads for all of them; if it is cancelled, another takes over. The end of
the body is not a disconnect: the client still waits for its answer. After the end of the body
`receive` blocks until the disconnect. If it returns another piece of a body instead (test doubles
do, and NGINX Unit did), we stop reading, and notice no disconnect.

The types are those of ASGI, version 3 (https://asgi.readthedocs.io): an application's arguments.
They are the same plain types as Starlette's, so that code for one fits the other. Other frameworks
have typed dictionaries of their own; `AnyApp` and `ASGIApp` fit those as well.
"""

from asyncio import CancelledError, Future, Task, current_task, get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from math import ceil
from re import compile as regex
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final
from urllib.parse import unquote_plus

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AnyApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]

_QUOTED = regex(r'"(?:[^"\\]|\\.)*+"?')
_SECONDS = regex(r"[0-9]{1,18}")
_NUMBER = regex(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf")

MESSAGE_OVERHEAD: Final = 256
"""Bytes that a buffered message counts for, beside its content."""

READ_AHEAD: Final = 256 * 1024
"""Bytes that are buffered by default. With more in the buffer we stop reading until the application
has read some: the server then slows the client down, and we notice a disconnect only after that."""

END_OF_BODY: Final[Message] = {"type": "http.request", "body": b"", "more_body": False}
"""The empty last message of a body. Most requests have no other message, so all requests share
it, and it does not count toward the buffered bytes."""


def header_values(scope: Scope, name: bytes) -> list[str]:
    """The values of the header fields called `name`, which is in lower case, in their order."""
    return [
        value.decode("latin-1")
        for field, value in scope.get("headers", ())
        if field.lower() == name
    ]


class RequestedWait(NamedTuple):
    """A wait that a request asks for, in seconds, and whether it does so by `Prefer`."""

    seconds: float
    from_header: bool


def query_parameter(scope: Scope, name: str) -> str | None:
    """The last value of a parameter of the query; `None` if there is none."""
    query: bytes = scope.get("query_string", b"")
    for field in reversed(query.decode("latin-1").split("&")):
        field_name, _, value = field.partition("=")
        if field and unquote_plus(field_name) == name:
            return unquote_plus(value)
    return None


def requested_wait(scope: Scope, parameter: str) -> RequestedWait | None:
    """The wait that a request asks for; the parameter takes precedence over the header.

    Raises:
        ValueError: the parameter is not a number of seconds from zero.
    """
    text = query_parameter(scope, parameter)
    if text is not None:
        if not _NUMBER.fullmatch(text):
            raise ValueError(
                f"{parameter} must be a number of seconds, zero or more, not {text[:40]!r}"
            )
        return RequestedWait(float(text), from_header=False)
    preferred = preferred_wait(header_values(scope, b"prefer"))
    return None if preferred is None else RequestedWait(preferred, from_header=True)


def preferred_wait(prefer: Iterable[str]) -> float | None:
    """The `wait` among the preferences in the values of `Prefer` header fields: the first one, as
    in RFC 7240."""
    for value in prefer:
        for preference in _QUOTED.sub("", value).split(","):
            name, _, word = preference.partition(";")[0].partition("=")
            if name.strip().lower() == "wait":
                return float(word) if _SECONDS.fullmatch(word.strip()) else None
    return None


def preference_applied(seconds: float, from_header: bool) -> str:
    """The `Preference-Applied` header of a wait: in whole seconds, rounded up, if `Prefer`
    requested it."""
    return f"wait={ceil(seconds)}" if from_header else f"wait={seconds:.3f}".rstrip("0").rstrip(".")


def size_of(message: Message) -> int:
    """Bytes that a buffered message counts for. A text that is not ASCII takes up to four bytes
    for each character, and counts for that."""
    if message is END_OF_BODY:
        return 0
    text = message.get("text") or ""
    return (
        MESSAGE_OVERHEAD
        + sum(len(message.get(part) or b"") for part in ("body", "bytes"))
        + len(text) * (1 if text.isascii() else 4)
    )


class DisconnectListener(Protocol):
    """Is notified of the end of a client."""

    def on_disconnect(self) -> None:
        """Called once, when the client has disconnected, or the server's `receive` has raised."""

    def on_request_end(self) -> None:
        """Called once, when the application has returned."""


@final
class Client:
    """Wraps a server's `receive` and shares its messages. It is callable like `receive`.

    Args:
        receive: the server's.
        read_ahead: how many bytes to buffer before reading stops; each message counts as at least
            `MESSAGE_OVERHEAD`.
    """

    __slots__ = (
        "_body_has_ended", "_buffer", "_buffered_bytes", "_changed", "_disconnect_message", "_is_cut_off",
        "_listener", "_others", "_read_ahead", "_reader", "_reading", "_receive", "_task",
        "disconnected", "error", "has_polled", "is_over",
    )  # fmt: skip

    def __init__(self, receive: Receive, read_ahead: int = READ_AHEAD) -> None:
        self._receive = receive
        self._read_ahead = read_ahead
        self._buffer: list[Message] | None = None
        self._buffered_bytes = 0
        self._body_has_ended = False
        self._reading = False
        self._changed: tuple[Future[None], ...] = ()
        """Wait until something was read, or taken from the buffer."""
        self._reader: Task[None] | None = None
        """Reads ahead as long as there may be listeners."""
        self._listener: DisconnectListener | None = None
        self._others: tuple[DisconnectListener, ...] = ()
        """Further listeners. Most requests have one listener; a container would be one more object
        for the garbage collector, which takes a quarter of a poll's CPU."""
        self._task = current_task()
        """The application's."""
        self._is_cut_off = False
        self.disconnected = False
        self.has_polled = False
        """Whether the application has asked for a poll, so that no cache may keep the answer."""
        self.is_over = False
        """Whether the application has returned."""
        self._disconnect_message: Message | None = None
        self.error: Exception | None = None
        """The exception of the server's `receive` in the reader task."""

    async def __call__(self) -> Message:
        """The next message for the application, from the buffer or else from the server, as ASGI's
        `receive`."""
        while not self._buffer:
            if self._disconnect_message is not None:
                return {**self._disconnect_message}
            if self._reading:
                await self._wait_change()
            else:
                self._reading = True
                try:
                    self._store(await self._receive())
                finally:
                    self._stop_reading()
        message = self._buffer.pop(0)
        self._buffered_bytes -= size_of(message)
        self._wake()
        return {**message}

    receive = __call__

    def add_listener(self, listener: DisconnectListener) -> None:
        """Reads ahead until the client disconnects, and then notifies `listener`, unless
        `disconnected` is true already.

        Raises:
            Exception: the server's `receive` has raised it before.
        """
        if self.error is not None:
            raise self.error
        if self._listener is None:
            self._listener = listener
        else:
            self._others += (listener,)
        if self._reader is None and not self.disconnected:
            self._reader = get_running_loop().create_task(
                self._read_on(), name="purgatory.asgi: listens to a client"
            )

    def remove_listener(self, listener: DisconnectListener) -> None:
        """Removes `listener`. Reading continues until `close`, for later listeners."""
        if self._listener is listener:
            self._listener = None
        elif self._others:
            self._others = tuple(other for other in self._others if other is not listener)

    def cut_off(self) -> None:
        """Cancels the application, unless it has returned or is being cancelled already."""
        if self._task is not None and not self.is_over and not self._task.cancelling():
            self._is_cut_off = True
            self._task.cancel()

    def was_cut_off(self) -> bool:
        """Whether `cut_off`, and nothing else, has cancelled the application."""
        if self._task is None or not self._is_cut_off:
            return False
        return self._task.cancelling() <= 1  # 0 if a scope of anyio has counted ours as its own

    def close(self) -> None:
        """Stops reading: the application has returned, and the buffer is not needed any more."""
        self.is_over = True
        if self._task is not None and self._is_cut_off and self._task.cancelling():
            self._task.uncancel()
        if self._reader is not None:
            self._reader.cancel()
        listeners, self._listener, self._others = self._listeners(), None, ()
        for listener in listeners:
            listener.on_request_end()

    def _listeners(self) -> tuple[DisconnectListener, ...]:
        return self._others if self._listener is None else (self._listener, *self._others)

    async def _read_on(self) -> None:
        try:
            while not self.disconnected:
                if self._reading or self._buffered_bytes > self._read_ahead:
                    await self._wait_change()
                    continue
                self._reading = True
                try:
                    message = await self._receive()
                    if self._body_has_ended and message["type"] == "http.request":
                        return  # this `receive` never blocks, and would stop the loop
                    self._store(message)
                finally:
                    self._stop_reading()
        except (
            CancelledError
        ):  # by `close`; kept in the task, its traceback would hold the client, and so the task
            return
        except Exception as error:
            self.error = error
        for listener in self._listeners():
            listener.on_disconnect()

    def _stop_reading(self) -> None:
        self._reading = False
        self._wake()

    def _store(self, message: Message) -> None:
        if message["type"] in ("http.disconnect", "websocket.disconnect"):
            self.disconnected, self._disconnect_message = True, message
            return
        if message["type"] == "http.request" and not message.get("more_body"):
            self._body_has_ended = True
            if not message.get("body"):
                message = END_OF_BODY
        if self._buffer is None:
            self._buffer = [message]
        else:
            self._buffer.append(message)
        self._buffered_bytes += size_of(message)

    async def _wait_change(self) -> None:
        """Waits until something was read, or taken from the buffer, or the task that read was
        cancelled."""
        future = get_running_loop().create_future()
        self._changed += (future,)
        await future

    def _wake(self) -> None:
        changed, self._changed = self._changed, ()
        for future in changed:
            if not future.done():
                future.set_result(None)
