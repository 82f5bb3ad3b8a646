"""A store in NATS 2.12 or later, with JetStream: two streams in memory, and a channel.

    purgatory_versions.meta        epoch, floor, and the latest position among the forgotten keys
    purgatory_versions.key.=b3Jk   version of a key; one subject per key, with its name in base64
    purgatory_versions.news        changes of the last write
    purgatory_settled.=cGF5        value delivered to a key; this stream is created at first use
    purgatory_news                 channel: the server republishes `news` here
    purgatory_news.>               channels to which the server republishes headers of values

The stream keeps the last message of each subject. Its sequence numbers are the positions, so
changes are read by sequence number. A write reads the versions, and publishes the new versions and
the news in one batch. The server stores the batch as a whole, and only if neither a key nor `meta`
has a later message; otherwise the write starts over.

Forgetting first raises the floor in `meta`, and then deletes keys by sequence number. A key written
meanwhile has another number, so it is kept; a write with the old floor is refused.

A delivered value is stored if its key has none. The server removes it after whole seconds, and
republishes its headers, without the value. The exact time to
live is in a header, and is compared with the server's clock.

A stream in memory is lost as a whole, when its server restarts or when it is deleted. The epoch is
lost with it, and the next process creates both again. The new stream's first sequence number is the
current time, higher than all numbers of the old stream, so a write to the old one is refused.
By default the stream is on one server. With replicas, any of them answers a read, perhaps with
outdated data. So a read first asks the leader for its last sequence number, and is repeated until
its answer includes that; values are read from the leader alone.
"""

import ssl
import time
from asyncio import gather, sleep
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from json import dumps, loads
from math import ceil
from secrets import token_hex
from typing import Any, Final, NamedTuple, final
from urllib.parse import parse_qsl, unquote, urlsplit

from purgatory import RelayUnavailable, timeout
from purgatory.relay._address import require_address, single_addresses, without_password
from purgatory.relay._connection import Connection
from purgatory.relay._forgetting import MAX_FORGOTTEN
from purgatory.relay._messages import (
    MAX_NUMBER,
    Change,
    ChangeMessage,
    Delivery,
    ReadResult,
    encode_settled,
    require_key,
)
from purgatory.relay._nats_link import SEQUENCE, Error, Msg, NatsLink
from purgatory.relay._store import (
    MAX_SETTLED_BYTES,
    NotWritten,
    Password,
    Refused,
    current,
    refuse_connection,
)

INFO_TIMEOUT: Final = 2.0
"""Seconds without an answer after which a stream counts as offline: of a server that was killed, the
other errors appear only minutes later."""

MAX_ROWS_PER_READ: Final = 500
"""Limit of changes per read."""

EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
EPOCH: Final = "Purgatory-Epoch"
TTL: Final = "Purgatory-TTL"
DELIVERED_BY: Final = "Purgatory-Delivered-By"

MAX_HEADER_BYTES: Final = 1_000
"""Size reserved in a message for the headers of a delivered value, in bytes."""

MAX_COMMAND_BYTES: Final = 300
"""Size reserved in a message for the headers of a batch, or the other words of a request, in
bytes."""

CLIENT_OPTIONS: Final = ("user_credentials", "nkeys_seed", "tls_hostname")
TLS_OPTIONS: Final = ("tls_ca", "tls_cert", "tls_key")
"""Options of an address: for the client, and files for its TLS context."""

MAX_REPLICAS: Final = 5

STALE_READ_PAUSE: Final = 0.01
"""Seconds until a read is repeated that a replica has answered with outdated data."""

HINT: Final = b"[]"
"""News of a write that exceeds a message: any key may have changed."""

FOUND: Final = "204"
NOT_FOUND: Final = "404"
NO_RESPONDERS: Final = "503"
"""Status of the last message of an answer. Without the stream there are no responders."""

NO_STREAM: Final = 10059
OFFLINE: Final = 10118
EXISTS: Final = 10058
OVERLAPS: Final = 10065
NEEDS_MAX_BYTES: Final = 10113
WRONG_LAST_SEQUENCE: Final = (10071, 10164)
"""Error codes of the server."""


class Meta(NamedTuple):
    """State of the store apart from the versions."""

    epoch: str
    floor: int
    forgotten: int
    """Highest sequence number among the forgotten messages."""
    sequence: int = 0
    """Sequence number of this message itself, assigned by the server."""

    @property
    def payload(self) -> bytes:
        return dumps((self.epoch, self.floor, self.forgotten)).encode()


class State(NamedTuple):
    """Content of the last messages of some subjects."""

    meta: Meta
    position: int
    versions: dict[str, tuple[int, int]]
    """Keys that the store has -> version and sequence number."""


Publication = tuple[str, bytes, int]
"""Subject and payload of a message, and the sequence number that the last message of its subject must
have."""


@final
class NatsStore:
    """The store at `nats://host:port`, or `tls://host:port`, or in the cluster of several hosts,
    `nats://host1:port,host2:port`. See `purgatory.relay.Store`."""

    def __init__(self, url: str, prefix: str, password: Password | None = None) -> None:
        self.address = without_password(url)
        url = require_address(url, takes_several_hosts=True)
        self._servers = single_addresses(url)
        self._user, self._password = unquote(urlsplit(url).username or ""), password
        self._options = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
        replicas = self._options.pop("replicas", "1")
        if replicas not in map(str, range(1, MAX_REPLICAS + 1)):
            raise ValueError(
                f"cannot use {self.address}: replicas must be from 1 to {MAX_REPLICAS}, "
                f"got {replicas!r}"
            )
        for name in self._options:
            if name not in CLIENT_OPTIONS + TLS_OPTIONS:
                known = ", ".join((*CLIENT_OPTIONS, *TLS_OPTIONS, "replicas"))
                raise ValueError(
                    f"cannot use {self.address}: expected an option of {known}, got {name!r}"
                )
        self._is_replicated = False
        """Whether a stream has replicas, which may answer reads with outdated data."""
        self._stream, self._channel = f"{prefix}_versions", f"{prefix}_news"
        self._meta, self._news, self._keys = (
            f"{self._stream}.{name}" for name in ("meta", "news", "key.")
        )
        self._settled = f"{prefix}_settled"
        common = {
            "storage": "memory",
            "num_replicas": int(replicas),
            "max_msgs_per_subject": 1,
            "discard": "new",
            "allow_direct": True,
        }
        republished: dict[str, Any] = {"src": self._news, "dest": self._channel}
        self._config = {
            "name": self._stream,
            "subjects": [f"{self._stream}.>"],
            "allow_atomic": True,
            "republish": republished,
            **common,
        }
        every = f"{self._settled}.>"
        republished = {"src": every, "dest": f"{self._channel}.>", "headers_only": True}
        self._settled_config = {
            "name": self._settled,
            "subjects": [every],
            "allow_msg_ttl": True,
            "republish": republished,
            **common,
        }
        self.max_value = MAX_NUMBER
        """Size limit of a value, in bytes; the server's limit after the first connection."""
        self._reader, self._writer = Connection[NatsLink](self), Connection[NatsLink](self)

    async def open(self) -> None:
        """See `Store.open`."""
        async with self._writer.use() as link:
            await self._make_stream(link, self._config)
            await self._state(link, ())

    async def close(self) -> None:
        """See `Store.close`."""
        await gather(self._reader.close(), self._writer.close())

    async def connect(self, current: NatsLink | None) -> NatsLink:
        """See `Server.connect`."""
        if current is not None and not current.ended.done():
            return current
        link = await NatsLink.open(self._servers, **await self._client_options())
        self.max_value = link.max_payload - MAX_HEADER_BYTES
        return link

    async def _client_options(self) -> dict[str, Any]:
        """Options of the client for a new connection. Files are read each time, since they may have
        been replaced."""
        options: dict[str, Any] = {
            name: value for name, value in self._options.items() if name in CLIENT_OPTIONS
        }
        if self._options.keys() & set(TLS_OPTIONS):
            context = ssl.create_default_context(cafile=self._options.get("tls_ca"))
            if "tls_cert" in self._options:
                context.load_cert_chain(self._options["tls_cert"], self._options.get("tls_key"))
            options["tls"] = context
        if self._password is not None:
            password = await current(self._password)
            own = {"user": self._user, "password": password} if self._user else {"token": password}
            options |= own
        return options

    async def disconnect(self, connection: NatsLink, _is_broken: bool) -> None:
        """See `Server.disconnect`."""
        await connection.close()

    def kind_of(self, error: Exception) -> type[Exception] | None:
        """See `Server.kind_of`."""
        if isinstance(error, PermissionError):
            return Refused
        return RelayUnavailable if isinstance(error, (Error, OSError)) else None

    async def _ask(self, link: NatsLink, verb: str, **words: Any) -> Any:
        """The server's answer to a request."""
        [message] = await link.ask(f"$JS.API.{verb}", dumps(words).encode(), is_repeated=True)
        if message.headers:
            raise NotWritten("JetStream is not enabled or not ready")
        return loads(message.data)

    async def _get(
        self, link: NatsLink, config: dict[str, Any] | None = None, **words: Any
    ) -> tuple[list[Msg], bool]:
        """Reads stored messages, by default from the stream of versions. Creates a missing stream.

        Returns:
            The messages, in order, and whether there are more.
        """
        config = config or self._config
        while True:
            *messages, end = await link.ask(
                f"$JS.API.DIRECT.GET.{config['name']}", dumps(words).encode(), is_repeated=True
            )
            status = (end.headers or {}).get("Status")
            if status in (FOUND, NOT_FOUND):
                return messages, status == FOUND and end.headers["Nats-Num-Pending"] != "0"  # type: ignore[index]
            if status != NO_RESPONDERS:
                raise NotWritten(f"unexpected status {status}")
            await self._make_stream(link, config)

    async def _make_stream(self, link: NatsLink, wanted: dict[str, Any]) -> None:
        """Creates a stream, unless it exists."""
        stream = wanted["name"]
        try:
            async with timeout(INFO_TIMEOUT):
                answer = await self._ask(link, f"STREAM.INFO.{stream}")
        except TimeoutError:
            answer = {"error": {"err_code": OFFLINE}}
        if answer.get("error", {}).get("err_code") == NO_STREAM:
            first = time.time_ns() // 1_000
            answer = await self._ask(link, f"STREAM.CREATE.{stream}", **wanted, first_seq=first)
        code = answer.get("error", {}).get("err_code")
        if code == EXISTS:  # another process was faster
            return
        if code == OFFLINE:
            raise NotWritten(
                f"its stream {stream} is offline: the servers with it are down, or have no leader; "
                "`?replicas=3` in the address puts a new stream on three servers"
            )
        if code == NEEDS_MAX_BYTES:
            raise Refused(
                f"the account requires a limit in bytes of its stream {stream}, which only you can "
                "choose: create the stream with it beforehand"
            )
        if "error" in answer and code != OVERLAPS:
            raise NotWritten(f"{answer['error']['description']}")
        config = answer.get("config", {})
        is_old = wanted is self._config and not config.get("allow_atomic")
        if is_old and config.get("republish") == wanted["republish"]:
            raise ValueError("the server must be NATS 2.12 or later")
        own = {**wanted, "num_replicas": config.get("num_replicas")}
        if any(config.get(name) != value for name, value in own.items()):
            raise ValueError(f"its stream {stream} is not a relay's, and was left alone")
        self._is_replicated = self._is_replicated or config["num_replicas"] > 1

    async def _last_sequence(self, link: NatsLink) -> int:
        """The last sequence number of a stream with replicas, as its leader knows it; 0 for any
        other stream, of which no answer is outdated."""
        if not self._is_replicated:
            return 0
        info = await self._ask(link, f"STREAM.INFO.{self._stream}")
        return int(info["state"]["last_seq"]) if "state" in info else 0

    async def _state(self, link: NatsLink, keys: Iterable[str]) -> State:
        """The last messages of these keys. Starts an epoch if there is none. Keys that exceed a
        request are read by further ones; if the floor or the epoch changes meanwhile, all are read
        again."""
        subjects = {self._subject(key): key for key in keys}
        least = await self._last_sequence(link)
        while True:
            metas: set[Meta | None] = set()
            positions: list[int] = []
            found: dict[str, Msg] = {}
            for part in self._portions(link, subjects):
                messages, _ = await self._get(link, multi_last=[self._meta, self._news, *part])
                found |= {message.headers["Nats-Subject"]: message for message in messages}  # type: ignore[index]
                last, news = found.pop(self._meta, None), found.pop(self._news, None)
                metas.add(meta_of(last) if last else None)
                positions.append(sequence_of(news) if news else 0)
            if metas == {None}:
                await self._store_meta(link, Meta(token_hex(4), 0, 0), "")
                continue
            meta = metas.pop()
            if metas or meta is None or positions[0] < least:
                await sleep(STALE_READ_PAUSE)
                continue
            versions = {
                key: (
                    meta.floor if (version := version_of(found[subject])) is None else version,
                    sequence_of(found[subject]),
                )
                for subject, key in subjects.items()
                if subject in found
            }
            return State(meta, positions[0], versions)

    def _portions(self, link: NatsLink, subjects: Iterable[str]) -> list[list[str]]:
        """The subjects in portions that a request can name; at least one portion."""
        portions: list[list[str]] = [[]]
        size, limit = 0, link.max_payload - MAX_COMMAND_BYTES
        for subject in subjects:
            size += len(subject) + len('"", ')
            if portions[-1] and size > limit:
                portions.append([])
                size = len(subject) + len('"", ')
            portions[-1].append(subject)
        return portions

    def _subject(self, key: str) -> str:
        return f"{self._keys}{encode_key(key)}"

    async def _store_meta(self, link: NatsLink, meta: Meta, epoch: str) -> int | None:
        """Stores `meta` in place of the message with its sequence number, and announces `epoch`.
        Returns as `_publish`."""
        publication = self._meta, meta.payload, meta.sequence
        return await self._publish(link, [publication], {EPOCH: epoch}, {})

    async def _publish(
        self,
        link: NatsLink,
        publications: Sequence[Publication],
        headers: dict[str, str],
        versions: dict[str, int],
    ) -> int | None:
        """Stores messages and their news in one batch.

        Args:
            link: an open connection.
            publications: the messages.
            headers: headers of the news.
            versions: the changed versions to announce.

        Returns:
            The new position; None if the server refused the batch, because another process has
            written meanwhile.
        """
        batch = {"Nats-Batch-Id": token_hex(8)}
        for number, (subject, payload, expected) in enumerate(publications, 1):
            numbers = {"Nats-Batch-Sequence": str(number), EXPECTED: str(expected)}
            await link.send(subject, payload, batch | numbers)
        numbers = {"Nats-Batch-Sequence": str(len(publications) + 1), "Nats-Batch-Commit": "1"}
        news = dumps(versions, separators=(",", ":")).encode()
        if len(news) > link.max_payload - MAX_COMMAND_BYTES:
            news = HINT
        [message] = await link.ask(self._news, news, batch | numbers | headers)
        if not message.data:
            raise NotWritten(f"the stream {self._stream} is gone")
        answer = loads(message.data)
        if "error" not in answer:
            return int(answer["seq"])
        if answer["error"].get("err_code") in WRONG_LAST_SEQUENCE:
            return None
        raise NotWritten(f"{answer['error']['description']}")

    # -- versions

    async def read(self, keys: Sequence[str], since: int | None) -> ReadResult:
        """See `Store.read`."""
        changes: list[Msg] = []
        has_more = False
        async with self._reader.use() as link:
            least = 0
            if since is not None:
                least = await self._last_sequence(link)
                every = f"{self._stream}.>"
                changes, has_more = await self._get(
                    link, seq=since + 1, batch=MAX_ROWS_PER_READ, next_by_subj=every
                )
            meta, latest, known = await self._state(link, keys)
        versions: dict[str, int] = {}
        for message in changes:
            key, version = key_of(message), version_of(message)
            if key is not None and version is not None:
                versions[key] = version
        versions.update({key: known[key][0] if key in known else meta.floor for key in keys})
        position = latest
        if since is not None:
            position = min(latest, sequence_of(changes[-1]) if changes else since)
            has_more = has_more or position < least  # an outdated replica has named the changes
        return ReadResult(
            meta.epoch,
            position,
            versions,
            has_more,
            latest,
            since is not None and since < meta.forgotten,
        )

    async def write(self, changes: Sequence[Change], connection: Any = None) -> ChangeMessage:
        """See `Store.write`."""
        refuse_connection(self, connection)
        async with self._writer.use() as link:
            while True:
                meta, position, known = await self._state(link, [key for key, _, _ in changes])
                versions: dict[str, int] = {}
                news: dict[str, int] = {}
                raised: list[Publication] = []
                for key, floor, increment in changes:
                    before, sequence = known.get(key, (meta.floor, 0))
                    version = versions[key] = max(before, floor) + increment
                    if version > before:
                        news[key] = version
                        raised.append((self._subject(key), b"%d" % version, sequence))
                if changes and not raised:
                    return ChangeMessage(meta.epoch, position, position, versions)
                unchanged = {EXPECTED: str(meta.sequence), f"{EXPECTED}-Subject": self._meta}
                headers = {EPOCH: meta.epoch, **unchanged}
                at = await self._publish(link, raised, headers, news)
                if at is not None:
                    return ChangeMessage(meta.epoch, at - len(raised) - 1, at, versions)

    async def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        async with self._writer.use() as link:
            while True:
                state = await self._state(link, keys)
                if not state.versions or await self._raise_floor(
                    link, state.meta, state.versions.values()
                ):
                    break
            deletions = (
                self._ask(link, f"STREAM.MSG.DELETE.{self._stream}", seq=sequence, no_erase=True)
                for _, sequence in state.versions.values()
            )
            await gather(*deletions)

    async def forget_unwritten(self, seconds: float) -> bool:
        """See `Store.forget_unwritten`. The server records the time of each message."""
        async with self._writer.use() as link:
            info = await self._ask(link, f"STREAM.INFO.{self._stream}")
            if "ts" not in info:
                return False
            horizon = datetime.fromisoformat(info["ts"]) - timedelta(seconds=seconds)
            meta, _, _ = await self._state(link, ())
            messages, _ = await self._get(
                link, seq=1, batch=MAX_FORGOTTEN, next_by_subj=f"{self._keys}>"
            )
            old = [message for message in messages if time_of(message) <= horizon]
            if not old:
                return False
            if await self._raise_floor(
                link, meta, [(version_of(message) or 0, sequence_of(message)) for message in old]
            ):
                # A key written meanwhile has a later number.
                filter_ = {"filter": f"{self._keys}>", "seq": sequence_of(old[-1]) + 1}
                await self._ask(link, f"STREAM.PURGE.{self._stream}", **filter_)
            return len(old) == MAX_FORGOTTEN

    async def _raise_floor(
        self, link: NatsLink, meta: Meta, forgotten: Iterable[tuple[int, int]]
    ) -> bool:
        """Raises the floor to the highest of these versions and sequence numbers. Returns False if
        another process has changed the floor meanwhile."""
        versions, sequences = zip(*forgotten, strict=True)
        later = meta._replace(
            floor=max(meta.floor, *versions), forgotten=max(meta.forgotten, *sequences)
        )
        return await self._store_meta(link, later, meta.epoch) is not None

    async def renew(self, epoch: str) -> None:
        """See `Store.renew`."""
        async with self._writer.use() as link:
            while True:
                meta, _, _ = await self._state(link, ())
                if meta.epoch != epoch:
                    return
                later = meta._replace(epoch=token_hex(4))
                if await self._store_meta(link, later, later.epoch) is not None:
                    return

    # -- deliveries

    async def settle(
        self, deliveries: Sequence[Delivery], connection: Any = None
    ) -> Mapping[str, bool]:
        """See `StoreWithDeliveries.settle`."""
        refuse_connection(self, connection)
        async with self._writer.use() as link:
            answers = await gather(
                *(self._settle(link, delivery) for delivery in deliveries), return_exceptions=True
            )
            errors = [answer for answer in answers if isinstance(answer, BaseException)]
            lost = [error for error in errors if not isinstance(error, NotWritten)]
            if lost or len(errors) == len(answers):
                raise (lost or errors)[0]
        return {
            delivery.key: answer
            for delivery, answer in zip(deliveries, answers, strict=True)
            if not isinstance(answer, BaseException)
        }

    async def _settle(self, link: NatsLink, delivery: Delivery) -> bool:
        key, value, ttl, token = delivery
        subject = f"{self._settled}.{encode_key(key)}"
        expected = 0
        while True:
            headers = {
                EXPECTED: str(expected),
                "Nats-TTL": f"{ceil(ttl)}s",
                TTL: repr(ttl),
                DELIVERED_BY: token.hex(),
            }
            [answer] = await link.ask(subject, value, headers)
            if not answer.data:  # the stream is missing
                await self._make_stream(link, self._settled_config)
                continue
            error = loads(answer.data).get("error")
            if error is None:
                return True
            if error.get("err_code") not in WRONG_LAST_SEQUENCE:
                raise NotWritten(f"{error['description']}")
            expected = 0
            for message in await self._settled_messages(link, [subject]):
                if message.headers.get(DELIVERED_BY) == token.hex():  # type: ignore[union-attr]
                    return True
                if not is_over(message, await self._server_time(link)):
                    return False
                expected = sequence_of(message)

    async def settled(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """See `StoreWithDeliveries.settled`."""
        async with self._reader.use() as link:
            subjects = [f"{self._settled}.{encode_key(key)}" for key in keys]
            messages = await self._settled_messages(link, subjects)
            now = await self._server_time(link) if messages else None
        found = ((key_of(message), message) for message in messages)
        return {
            key: message.data
            for key, message in found
            if key is not None and now is not None and not is_over(message, now)
        }

    async def _settled_messages(self, link: NatsLink, subjects: Sequence[str]) -> list[Msg]:
        """The values of these subjects, up to some size in total."""
        found: list[Msg] = []
        one_by_one = [[subject] for subject in subjects]
        for part in one_by_one if self._is_replicated else self._portions(link, subjects):
            if self._is_replicated:
                verb = f"STREAM.MSG.GET.{self._settled}"
                answer = await self._ask(link, verb, last_by_subj=part[0])
                messages = [stored_message(link, answer["message"])] if "message" in answer else []
            else:
                messages, _ = await self._get(
                    link, self._settled_config, multi_last=part, max_bytes=MAX_SETTLED_BYTES
                )
            found += messages
            if sum(len(message.data) for message in found) > MAX_SETTLED_BYTES:
                break
        return found

    async def _server_time(self, link: NatsLink) -> datetime | None:
        """The server's time; None if the stream is gone, with all its values."""
        info = await self._ask(link, f"STREAM.INFO.{self._settled}")
        return datetime.fromisoformat(info["ts"]) if "ts" in info else None

    # -- messages

    async def listen(
        self, on_subscribed: Callable[[], None], on_message: Callable[[bytes | str], None]
    ) -> None:
        """See `Store.listen`."""

        async def receive(message: Msg) -> None:
            headers = message.headers or {}
            if EPOCH in headers:  # any client may have sent it, so `decode` checks it
                if message.data == HINT:
                    on_message(HINT)
                    return
                numbers = [headers.get(name, "") for name in ("Nats-Last-Sequence", SEQUENCE)]
                epoch, data = dumps(headers[EPOCH]), message.data.decode(errors="replace")
                on_message(f"[{epoch},{','.join(numbers)},{data}]")
            elif headers.get("Nats-Stream") == self._settled and "Nats-Subject" in headers:
                key = key_of(message)
                if key is not None:
                    on_message(encode_settled([key], MAX_SETTLED_BYTES))
            else:
                on_message(message.data)

        async with self._reader.use() as link:
            for channel in (self._channel, f"{self._channel}.>"):
                await link.subscribe(channel, receive)
        try:
            on_subscribed()
            await link.ended
        finally:
            self._reader.drop(link)

    async def send(self, payload: bytes) -> None:
        """See `Store.send`."""
        async with self._writer.use() as link:
            await link.send(self._channel, payload)


def meta_of(message: Msg) -> Meta:
    """The state of the store in a stored message."""
    return Meta(*loads(message.data))._replace(sequence=sequence_of(message))


def sequence_of(message: Msg) -> int:
    """Sequence number of a stored message."""
    return int(message.headers[SEQUENCE])  # type: ignore[index]


def stored_message(link: NatsLink, stored: Mapping[str, Any]) -> Msg:
    """A message from an answer of the leader, as a replica would send it."""
    lines = b64decode(stored.get("hdrs", "")).decode().split("\r\n")[1:]
    headers = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    headers |= {
        SEQUENCE: str(stored["seq"]),
        "Nats-Subject": stored["subject"],
        "Nats-Time-Stamp": stored["time"],
    }
    return link.message(b64decode(stored.get("data", "")), headers)


def encode_key(key: str) -> str:
    """Last part of the subject of a key."""
    return f"={urlsafe_b64encode(key.encode()).decode().rstrip('=')}"


def key_of(message: Msg) -> str | None:
    """The key of a message with the server's headers; None if it is about no key."""
    _, separator, name = message.headers["Nats-Subject"].rpartition(".=")  # type: ignore[index]
    with suppress(ValueError):
        key = urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
        return require_key(key) if separator else None
    return None


def is_over(message: Msg, now: datetime | None) -> bool:
    """Whether the time to live of a delivered value is over. True without a time to live: no relay
    has delivered such a value."""
    with suppress(ValueError, OverflowError):
        ttl = float((message.headers or {}).get(TTL, ""))
        return now is None or now >= time_of(message) + timedelta(seconds=ttl)
    return True


def version_of(message: Msg) -> int | None:
    """The version in a stored message; None if it is not a version."""
    data = message.data
    return int(data) if len(data) <= 16 and data.isdigit() and int(data) <= MAX_NUMBER else None


def time_of(message: Msg) -> datetime:
    """Time at which a message was stored."""
    return datetime.fromisoformat(message.headers["Nats-Time-Stamp"])  # type: ignore[index]
