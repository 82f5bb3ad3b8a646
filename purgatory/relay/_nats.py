"""A store in NATS 2.12 or later, with JetStream: one stream in memory, and two channels.

    purgatory_versions.meta        epoch, floor, and the last position that was forgotten
    purgatory_versions.key.=b3Jk   of each key, whose name is in base64, its version
    purgatory_versions.news        what the last write has changed
    purgatory_news                 the channel of changes, to which the server publishes `news` again
    purgatory_common               the channel of all else, to which each process listens

The stream keeps the last message of each subject. Its sequence numbers are the positions, so what has changed is read by them.
A write reads the versions, and publishes the next ones and the news in one batch, which the server stores as a whole, and only
if none of the keys has a later message by now, and neither has `meta`: otherwise it begins anew.

What is forgotten raises the floor in `meta` first. Then it is deleted by its sequence number, which is another one if somebody
has written the key meanwhile; and a write that knows the old floor is refused.

A stream in memory is lost as a whole, when its server is restarted or when it is deleted. The epoch is lost with it, and the
next process that comes makes both anew. Its first sequence number is the time: it has none that the last one had, so a write
that was begun there is refused. The stream has no replicas, since these might answer reads with what is no longer so.
"""

import time
from asyncio import CancelledError, Future, Lock, Task, create_task, gather, get_running_loop, wait
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import count
from json import dumps, loads
from secrets import token_hex
from typing import Any, Final, NamedTuple, final

from purgatory._errors import how_to_install

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.errors import Error
except ImportError as error:
    raise ImportError(f"a relay over NATS needs its client: {how_to_install('nats')}") from error

from purgatory import RelayUnavailable
from purgatory.relay._address import check_address, without_password
from purgatory.relay._forgetting import MAX_FORGOTTEN
from purgatory.relay._messages import Change, ChangeMessage, ReadResult, encode
from purgatory.relay._store import NotWritten

MAX_ROWS_PER_READ: Final = 500
"""How many changes one read returns."""

EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
EPOCH: Final = "Purgatory-Epoch"

FOUND: Final = "204"
NOT_FOUND: Final = "404"
NOBODY: Final = "503"
"""What the last message of an answer says; nobody answers if there is no stream."""

NO_STREAM: Final = 10059
EXISTS: Final = 10058
OVERLAPS: Final = 10065
WRONG_LAST_SEQUENCE: Final = (10071, 10164)
"""Codes of the server's errors."""


class Meta(NamedTuple):
    """What the store keeps besides versions."""

    epoch: str
    floor: int
    forgotten: int
    """The highest sequence number of a message that was forgotten."""
    sequence: int = 0
    """Its own, which is kept by the server."""

    @property
    def payload(self) -> bytes:
        return dumps((self.epoch, self.floor, self.forgotten)).encode()


class State(NamedTuple):
    """What the last messages of some subjects say."""

    meta: Meta
    position: int
    versions: dict[str, tuple[int, int]]
    """Those keys that are there -> version and sequence number."""


class Publication(NamedTuple):
    """A message to be stored, if this is the sequence number of the last one of its subject."""

    subject: str
    payload: bytes
    expected: int


@final
class NatsStore:
    """The store at `nats://host:port`. See `purgatory.relay.Store`."""

    def __init__(self, url: str, prefix: str) -> None:
        self.address = without_password(check_address(url))
        self._url = url
        self._stream, self._channel, self._common = f"{prefix}_versions", f"{prefix}_news", f"{prefix}_common"
        self._meta, self._news, self._keys = (f"{self._stream}.{name}" for name in ("meta", "news", "key."))
        self._config = {
            "name": self._stream,
            "subjects": [f"{self._stream}.>"],
            "storage": "memory",
            "num_replicas": 1,
            "max_msgs_per_subject": 1,
            "allow_direct": True,
            "allow_atomic": True,
            "republish": {"src": self._news, "dest": self._channel},
        }
        self._link: Link | None = None
        self._lock = Lock()
        self._is_interested = True
        self._listening: tuple[Link, Callable[[Msg], Any]] | None = None
        """The connection that listens, and what it calls."""
        self._joining = Lock()
        self._closing: set[Task[None]] = set()

    async def open(self) -> None:
        """See `Store.open`."""
        self._is_interested = True
        async with self._connected() as link:
            await self._make_stream(link)
            await self._state(link, ())

    async def close(self) -> None:
        """See `Store.close`."""
        self._drop(self._link)
        await gather(*self._closing)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator["Link"]:
        """A connection. Translates its errors."""
        kind: type[RelayUnavailable] = NotWritten
        link = None
        try:
            async with self._lock:
                if self._link is not None and self._link.ended.done():
                    self._drop(self._link)
                if self._link is None:
                    self._link = await Link.open(self._url)
                link = self._link
            kind = RelayUnavailable
            yield link
        except CancelledError:
            self._drop(link)  # perhaps its time is over because the connection is dead
            raise
        except (Error, OSError) as error:
            if isinstance(error, RelayUnavailable):
                raise
            raise self._unavailable(error, kind) from error

    def _unavailable(self, error: Exception, kind: type[RelayUnavailable] = RelayUnavailable) -> RelayUnavailable:
        return kind(f"cannot use {self.address}: {str(error) or type(error).__name__}")

    def _drop(self, link: "Link | None") -> None:
        """Closes a connection as soon as nobody uses it."""
        if link is not None and link is self._link:
            self._link = None
            task = create_task(link.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _ask(self, link: "Link", verb: str, **words: Any) -> Any:
        """The server's answer to a request."""
        [message] = await link.ask(f"$JS.API.{verb}", dumps(words).encode())
        if message.headers:
            raise NotWritten(f"cannot use {self.address}: JetStream is not enabled, or not ready")
        return loads(message.data)

    async def _get(self, link: "Link", **words: Any) -> tuple[list[Msg], bool]:
        """Stored messages in their order, and whether there are more."""
        while True:
            *messages, end = await link.ask(f"$JS.API.DIRECT.GET.{self._stream}", dumps(words).encode())
            status = (end.headers or {}).get("Status")
            if status in (FOUND, NOT_FOUND):
                return messages, status == FOUND and end.headers["Nats-Num-Pending"] != "0"  # type: ignore[index]
            if status != NOBODY:
                raise NotWritten(f"cannot use {self.address}: it has answered {status}")
            await self._make_stream(link)

    async def _make_stream(self, link: "Link") -> None:
        """Makes the stream, unless there is one."""
        answer = await self._ask(link, f"STREAM.INFO.{self._stream}")
        if answer.get("error", {}).get("err_code") == NO_STREAM:
            first = time.time_ns() // 1_000
            answer = await self._ask(link, f"STREAM.CREATE.{self._stream}", **self._config, first_seq=first)
        code = answer.get("error", {}).get("err_code")
        if code == EXISTS:  # others are quicker
            return
        if "error" in answer and code != OVERLAPS:
            raise NotWritten(f"cannot use {self.address}: {answer['error']['description']}")
        config = answer.get("config", {})
        if not config.get("allow_atomic") and config.get("republish") == self._config["republish"]:
            raise ValueError(f"cannot use {self.address}: its NATS is older than 2.12")
        if any(config.get(name) != value for name, value in self._config.items()):
            raise ValueError(
                f"cannot use the stream {self._stream} at {self.address}: it is something else, and was left alone"
            )

    async def _state(self, link: "Link", keys: Iterable[str]) -> State:
        """The last messages of these keys, in one snapshot. Begins an epoch, if there is none."""
        while True:
            messages, _ = await self._get(link, multi_last=[self._meta, self._news, *map(self._subject, keys)])
            position, meta, versions = 0, None, {}
            for message in messages:
                sequence = sequence_of(message)
                if message.headers["Nats-Subject"] == self._meta:  # type: ignore[index]
                    epoch, floor, forgotten = loads(message.data)
                    meta = Meta(epoch, floor, forgotten, sequence)
                elif message.headers["Nats-Subject"] == self._news:  # type: ignore[index]
                    position = sequence
                else:
                    versions[self._key(message)] = (int(message.data), sequence)
            if meta is not None:
                return State(meta, position, versions)
            await self._publish(link, [Publication(self._meta, Meta(token_hex(4), 0, 0).payload, 0)], None, "", {})

    def _subject(self, key: str) -> str:
        return f"{self._keys}={urlsafe_b64encode(key.encode()).decode().rstrip('=')}"

    def _key(self, message: Msg) -> str:
        name: str = message.headers["Nats-Subject"].rpartition("=")[2]  # type: ignore[index]
        return urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()

    async def _publish(
        self, link: "Link", publications: Sequence[Publication], meta: Meta | None, epoch: str, versions: dict[str, int]
    ) -> int | None:
        """Stores these messages and the news of them; the position after that, or None if it was refused, as others have
        written.

        Args:
            link: the connection.
            publications: the messages.
            meta: what has to stand; None if it is one of the messages.
            epoch: of the news.
            versions: that are news.
        """
        id_ = token_hex(8)
        for number, (subject, payload, expected) in enumerate(publications, 1):
            headers = {"Nats-Batch-Id": id_, "Nats-Batch-Sequence": str(number), EXPECTED: str(expected)}
            await link.send(subject, payload, headers)
        headers = {"Nats-Batch-Id": id_, "Nats-Batch-Sequence": str(len(publications) + 1), "Nats-Batch-Commit": "1"}
        headers[EPOCH] = epoch
        if meta is not None:
            headers |= {EXPECTED: str(meta.sequence), f"{EXPECTED}-Subject": self._meta}
        [message] = await link.ask(self._news, dumps(versions, separators=(",", ":")).encode(), headers)
        if not message.data:
            raise NotWritten(f"cannot use {self.address}: the stream {self._stream} is gone")
        answer = loads(message.data)
        if "error" not in answer:
            return int(answer["seq"])
        if answer["error"].get("err_code") in WRONG_LAST_SEQUENCE:
            return None
        raise NotWritten(f"cannot use {self.address}: {answer['error']['description']}")

    # -- versions

    async def read(self, keys: Sequence[str], since: int | None) -> ReadResult:
        """See `Store.read`."""
        changes: list[Msg] = []
        has_more = False
        async with self._connected() as link:
            if since is not None:
                every = f"{self._stream}.>"
                changes, has_more = await self._get(link, seq=since + 1, batch=MAX_ROWS_PER_READ, next_by_subj=every)
            meta, latest, known = await self._state(link, keys)
        versions = {self._key(message): int(message.data) for message in changes if self._is_key(message)}
        versions.update({key: known[key][0] if key in known else meta.floor for key in keys})
        position = latest
        if since is not None:
            position = min(latest, sequence_of(changes[-1]) if changes else since)
        return ReadResult(meta.epoch, position, versions, has_more, latest, since is not None and since < meta.forgotten)

    def _is_key(self, message: Msg) -> bool:
        return message.headers["Nats-Subject"].startswith(self._keys)  # type: ignore[index]

    async def write(self, changes: Sequence[Change], connection: Any = None) -> ChangeMessage:
        """See `Store.write`."""
        if connection is not None:
            raise TypeError(f"{self.address} writes in no other transaction than its own, so it takes no connection")
        async with self._connected() as link:
            while True:
                try:
                    meta, position, known = await self._state(link, [key for key, _, _ in changes])
                except RelayUnavailable:
                    raise
                except (Error, OSError) as error:  # nothing was written yet
                    raise NotWritten(f"cannot use {self.address}: {error}") from error
                versions: dict[str, int] = {}
                raised: list[Publication] = []
                for key, floor, increment in changes:
                    before, sequence = known.get(key, (meta.floor, 0))
                    versions[key] = max(before, floor) + increment
                    if versions[key] > before:
                        raised.append(Publication(self._subject(key), b"%d" % versions[key], sequence))
                if changes and not raised:
                    return ChangeMessage(meta.epoch, position, position, versions)
                news = {key: version for key, version in versions.items() if version > known.get(key, (meta.floor, 0))[0]}
                stored_at = await self._publish(link, raised, meta, meta.epoch, news)
                if stored_at is not None:
                    return ChangeMessage(meta.epoch, stored_at - len(raised) - 1, stored_at, versions)

    async def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        async with self._connected() as link:
            while True:
                state = await self._state(link, keys)
                if not state.versions or await self._raise_floor(link, state.meta, state.versions.values()):
                    break
            deletions = (
                self._ask(link, f"STREAM.MSG.DELETE.{self._stream}", seq=sequence, no_erase=True)
                for _, sequence in state.versions.values()
            )
            await gather(*deletions)

    async def forget_unwritten(self, seconds: float) -> bool:
        """See `Store.forget_unwritten`. Each message has the time at which it was stored."""
        async with self._connected() as link:
            info = await self._ask(link, f"STREAM.INFO.{self._stream}")
            if "ts" not in info:
                return False
            horizon = datetime.fromisoformat(info["ts"]) - timedelta(seconds=seconds)
            meta, _, _ = await self._state(link, ())
            messages, _ = await self._get(link, seq=1, batch=MAX_FORGOTTEN, next_by_subj=f"{self._keys}>")
            old = [message for message in messages if time_of(message) <= horizon]
            if not old:
                return False
            if await self._raise_floor(link, meta, [(int(message.data), sequence_of(message)) for message in old]):
                # What was written again since has a later number.
                filter_ = {"filter": f"{self._keys}>", "seq": sequence_of(old[-1]) + 1}
                await self._ask(link, f"STREAM.PURGE.{self._stream}", **filter_)
            return len(old) == MAX_FORGOTTEN

    async def _raise_floor(self, link: "Link", meta: Meta, forgotten: Iterable[tuple[int, int]]) -> bool:
        """Has the floor be above these versions and sequence numbers; whether no one else has changed it meanwhile."""
        versions, sequences = zip(*forgotten, strict=True)
        later = Meta(meta.epoch, max(meta.floor, *versions), max(meta.forgotten, *sequences))
        stored = await self._publish(link, [Publication(self._meta, later.payload, meta.sequence)], None, meta.epoch, {})
        return stored is not None

    async def renew(self, epoch: str) -> None:
        """See `Store.renew`."""
        async with self._connected() as link:
            while True:
                meta, _, _ = await self._state(link, ())
                if meta.epoch != epoch:
                    return
                later = meta._replace(epoch=token_hex(4))
                changed = Publication(self._meta, later.payload, meta.sequence)
                position = await self._publish(link, [changed], None, later.epoch, {})
                if position is not None:  # who has no interest in changes is to know of it as well
                    await link.send(self._common, encode(ChangeMessage(later.epoch, position, position, {})))
                    return

    # -- messages

    async def listen(self, on_subscribed: Callable[[], None], on_message: Callable[[bytes | str], None]) -> None:
        """See `Store.listen`."""

        async def receive(message: Msg) -> None:
            headers = message.headers or {}
            if EPOCH in headers:
                after, position = headers["Nats-Last-Sequence"], headers["Nats-Sequence"]
                on_message(f'["{headers[EPOCH]}",{after},{position},{message.data.decode()}]')
            else:
                on_message(message.data)

        try:
            link = await Link.open(self._url)
            try:
                await link.subscribe(self._common, receive)
                self._listening = link, receive
                await self._join_or_leave()
                on_subscribed()
                await link.ended
            finally:
                self._listening = None
                await link.close()
        except (Error, OSError) as error:
            raise self._unavailable(error) from error

    async def set_interest(self, is_wanted: bool) -> None:
        """See `StoreWithInterest.set_interest`."""
        self._is_interested = is_wanted
        try:
            await self._join_or_leave()
        except (Error, OSError) as error:
            raise self._unavailable(error) from error

    async def _join_or_leave(self) -> None:
        async with self._joining:
            if self._listening is not None:
                link, receive = self._listening
                if self._is_interested:
                    await link.subscribe(self._channel, receive)
                else:
                    await link.unsubscribe(self._channel)

    async def send(self, payload: bytes) -> None:
        """See `Store.send`."""
        async with self._connected() as link:
            await link.send(self._common, payload)


def sequence_of(message: Msg) -> int:
    """The sequence number of a stored message."""
    return int(message.headers["Nats-Sequence"])  # type: ignore[index]


def time_of(message: Msg) -> datetime:
    """When a message was stored."""
    return datetime.fromisoformat(message.headers["Nats-Time-Stamp"])  # type: ignore[index]


@final
class Link:
    """A connection, which is not made anew by itself.

    nats-py has callbacks for the end of a connection. They are not called if it is lost while something is being sent, and its
    `flush` then waits for ever. So it has ended when one of its tasks has, and a message to oneself confirms a subscription.
    """

    def __init__(self) -> None:
        self._client = Client()
        self._inbox = self._client.new_inbox()
        self._numbers = count()
        self._calls: dict[str, tuple[list[Msg], Future[list[Msg]]]] = {}
        """Requests under way, by the last part of the subject for their answers."""
        self._subscriptions: dict[str, Subscription] = {}
        self.ended: Future[None] = get_running_loop().create_future()
        self._error: Exception | None = None

    @classmethod
    async def open(cls, url: str) -> "Link":
        """Connects.

        Raises:
            Error, OSError: it could not.
        """
        link = cls()
        options: dict[str, Any] = {"max_reconnect_attempts": 1, "reconnect_time_wait": 0, "connect_timeout": 3_600}
        # In a task of its own: it uses `wait_for`, which on Python 3.11 may swallow a cancellation.
        connecting = create_task(link._client.connect(url, allow_reconnect=False, error_cb=link._on_error, **options))
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
            if isinstance(error, Error) and link._error is not None:
                raise link._error from error  # which says why
            raise
        return link

    async def _on_error(self, error: Exception) -> None:
        self._error = error

    def _on_end(self, task: "Task[None] | None") -> None:
        if task is not None and not task.cancelled():
            self._error = task.exception() or self._error  # type: ignore[assignment]
        if not self.ended.done():
            self.ended.set_result(None)
        for _, answered in self._calls.values():
            if not answered.done():
                answered.set_exception(ConnectionError(f"the connection has ended: {self._error or 'it was closed'}"))

    async def close(self) -> None:
        """Closes it, and ends the requests under way."""
        try:
            await self._client.close()
        except (Error, OSError):
            pass  # it is closed at the other end
        finally:
            self._on_end(None)
            for subscription in self._subscriptions.values():
                if subscription._wait_for_msgs_task is not None:
                    subscription._wait_for_msgs_task.cancel()

    async def subscribe(self, subject: str, on_message: Callable[[Msg], Any]) -> None:
        """Subscribes, unless that was done before, and returns when it is confirmed."""
        if subject not in self._subscriptions:
            self._subscriptions[subject] = await self._client.subscribe(subject, cb=on_message)
        await self.ask(None, b"")

    async def unsubscribe(self, subject: str) -> None:
        """Ends a subscription, if there is one."""
        subscription = self._subscriptions.pop(subject, None)
        if subscription is not None:
            await subscription.unsubscribe()

    async def send(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
        """Sends a message."""
        await self._client.publish(subject, payload, headers=headers)

    async def ask(self, subject: str | None, payload: bytes, headers: dict[str, str] | None = None) -> list[Msg]:
        """The messages that answer a request: stored ones, if these were requested, and one more.

        Args:
            subject: of the request; None to be answered by oneself.
            payload: of the request.
            headers: of the request.
        """
        number = str(next(self._numbers))
        answered: Future[list[Msg]] = get_running_loop().create_future()
        self._calls[number] = [], answered
        reply = f"{self._inbox}.{number}"
        try:
            await self._client.publish(subject or reply, payload, reply if subject else "", headers)
            return await answered
        finally:
            del self._calls[number]

    async def _on_answer(self, message: Msg) -> None:
        messages, answered = self._calls.get(message.subject.rpartition(".")[2], ([], None))
        messages.append(message)
        if answered is not None and not answered.done() and "Nats-Sequence" not in (message.headers or {}):
            answered.set_result(messages)
