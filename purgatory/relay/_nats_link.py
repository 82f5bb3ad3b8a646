"""A connection to NATS. `_nats.NatsStore` opens a new one after it has ended."""

from asyncio import Future, Task, create_task, get_running_loop, open_connection, wait
from collections.abc import Callable
from itertools import count
from typing import Any, Final, final

from purgatory._core.errors import how_to_install
from purgatory.relay._connection import last_words

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.errors import Error
except ImportError as error:
    raise ImportError(f"a relay over NATS needs its client: {how_to_install('nats')}") from error

__all__ = ["SEQUENCE", "Error", "Msg", "NatsLink"]

REPEAT_AFTER: Final = 0.5
"""Seconds without an answer after which a request is sent again; a cluster without a leader drops
requests."""

SEQUENCE: Final = "Nats-Sequence"
"""Header with the sequence number of a stored message in its stream."""


class CheckedClient(Client):
    """A client that sends credentials to no server without TLS if its address is `tls://`."""

    def _connect_command(self) -> bytes:
        server = self._current_server
        if server and server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise Error("the server offers no TLS; use nats:// for a connection without TLS")
        return super()._connect_command()


@final
class NatsLink:
    """A connection without automatic reconnects.

    nats-py has callbacks for the end of a connection, but does not call them if the connection is
    lost during a send, and its `flush` then blocks forever. So a link counts as ended once one of
    the client's tasks has ended, and a message to itself confirms a subscription.
    """

    def __init__(self) -> None:
        self._client = CheckedClient()
        self._inbox = self._client.new_inbox()
        self._numbers = count()
        self._calls: dict[str, tuple[list[Msg], Future[list[Msg]]]] = {}
        """Requests in flight, by the last part of their reply subject."""
        self._subscriptions: list[Subscription] = []
        self.ended: Future[None] = get_running_loop().create_future()
        self._error: Exception | None = None

    @classmethod
    async def open(cls, servers: list[str], **own: Any) -> "NatsLink":
        """Connects to one of these servers.

        Args:
            servers: their addresses.
            own: further options of `Client.connect`.

        Raises:
            Error, OSError: the connection failed.
        """
        link = cls()
        options: dict[str, Any] = {
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            # The caller has a time limit: a silent server must leave time for the next ones.
            "connect_timeout": 3_600 if len(servers) == 1 else 1,
            **own,
        }
        # In its own task: `connect` uses `wait_for`, which may swallow a cancellation on Python
        # 3.11.
        connecting = create_task(
            link._client.connect(servers, allow_reconnect=False, error_cb=link._on_error, **options)
        )
        try:
            await wait([connecting])
            connecting.result()
            for task in (link._client._reading_task, link._client._flusher_task):
                if task is not None:
                    task.add_done_callback(link._on_end)
            await link.subscribe(f"{link._inbox}.*", link._on_answer)
        except BaseException as error:
            connecting.cancel()
            await wait([connecting])
            await link.close()
            if not isinstance(error, (Error, OSError)):
                raise
            cause, server = link._error or error, link._client._current_server
            if isinstance(cause, OSError) and server is not None:  # it was connected
                words = await last_words(open_connection(server.uri.hostname, server.uri.port))
                cause = Error(words) if words else cause
            if cause is error:
                raise
            raise cause from error
        return link

    async def _on_error(self, error: Exception) -> None:
        self._error = error
        if "permissions violation" in str(error).lower():  # of some call: it has no other answer
            self._fail_calls(PermissionError(str(error)))

    def _on_end(self, task: "Task[None] | None") -> None:
        if task is not None and not task.cancelled():
            self._error = task.exception() or self._error  # type: ignore[assignment]
        if not self.ended.done():
            self.ended.set_result(None)
        reason = self._error or "it was closed"
        self._fail_calls(ConnectionError(f"the connection has ended: {reason}"))

    def _fail_calls(self, error: Exception) -> None:
        for _, answered in self._calls.values():
            if not answered.done():
                answered.set_exception(error)

    @property
    def max_payload(self) -> int:
        """The server's size limit of a message, in bytes."""
        return self._client.max_payload

    def message(self, data: bytes, headers: dict[str, str]) -> Msg:
        """A message with this content."""
        return Msg(self._client, data=data, headers=headers)

    async def close(self) -> None:
        """Closes the connection, and ends the requests in flight."""
        try:
            await self._client.close()
        except (Error, OSError):
            pass  # the server closed it first
        finally:
            self._on_end(None)
            for subscription in self._subscriptions:
                if subscription._wait_for_msgs_task is not None:
                    subscription._wait_for_msgs_task.cancel()

    async def subscribe(self, subject: str, on_message: Callable[[Msg], Any]) -> None:
        """Subscribes, and returns after the confirmation."""
        self._subscriptions.append(await self._client.subscribe(subject, cb=on_message))
        await self.ask(None, b"")

    async def send(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None
    ) -> None:
        """Sends a message."""
        await self._client.publish(subject, payload, headers=headers)

    async def ask(
        self,
        subject: str | None,
        payload: bytes,
        headers: dict[str, str] | None = None,
        is_repeated: bool = False,
    ) -> list[Msg]:
        """Sends a request, and returns the messages of its answer: any stored messages requested,
        and one final message.

        Args:
            subject: subject of the request; None for a message to itself.
            payload: payload of the request.
            headers: headers of the request.
            is_repeated: whether to send it again while no message comes.
        """
        answered: Future[list[Msg]] = get_running_loop().create_future()
        attempts: dict[str, list[Msg]] = {}
        delay = REPEAT_AFTER
        try:
            while True:
                number = str(next(self._numbers))
                attempts[number] = []
                self._calls[number] = attempts[number], answered  # the first answer counts
                reply = f"{self._inbox}.{number}"
                await self._client.publish(
                    subject or reply, payload, reply if subject else "", headers
                )
                if is_repeated:
                    await wait([answered], timeout=delay)
                    delay *= 2.0
                if not is_repeated or answered.done() or any(attempts.values()):
                    return await answered
        finally:
            for number in attempts:
                del self._calls[number]

    async def _on_answer(self, message: Msg) -> None:
        messages, answered = self._calls.get(message.subject.rpartition(".")[2], ([], None))
        messages.append(message)
        if answered is not None and not answered.done() and SEQUENCE not in (message.headers or {}):
            answered.set_result(messages)
