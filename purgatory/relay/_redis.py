"""A store in Redis, or Valkey: two keys, one more for each delivered value, and a channel.

    {purgatory}:versions        hash: epoch, server, position, floor, and v:orders/7 -> its version
    {purgatory}:order           sorted set: v:orders/7 -> position of its last write
    {purgatory}:settled:pay/7   a token of 16 bytes and the delivered value, with a time to live
    {purgatory}:news:0          channel of database 0, since channels ignore databases

Each operation is one script, so a version is raised and published in one step. FLUSHALL or eviction
removes the epoch together with the versions, and the next script starts a new epoch. It also does
so on another server than the epoch's first: a restarted server may have loaded an older dump, and a
promoted replica may lack the last writes. Reading the server's run_id takes 6 µs of its time.

All keys share one channel, so each process receives each write, which costs it 40 µs if it has no
waits for the key. A channel for each key would cost a subscription, its confirmation and a read for
the first wait of each key, and all of these at once after a lost connection. On one channel the
positions show missing messages.

On a cluster the braces put all keys into one slot, and messages go through sharded channels; so a
relay uses only one node. A node that loses this slot ends the subscription. Sentinels name one server, too. Each new connection first asks which
server has the keys, after an error of another node or Sentinel than before. A demoted server
refuses the scripts, and its subscribers still receive what the new one publishes.
"""

import re
from asyncio import gather, open_connection, open_unix_connection
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from json import dumps, loads
from math import ceil
from secrets import token_hex
from typing import Any, Final, final
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit
from weakref import WeakKeyDictionary

from purgatory._core.errors import how_to_install

try:
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.crc import key_slot
    from redis.credentials import CredentialProvider
    from redis.exceptions import BusyLoadingError, RedisError, ResponseError
    from redis.exceptions import ConnectionError as LostConnection
except ImportError as error:
    raise ImportError(f"a relay over Redis needs its client: {how_to_install('redis')}") from error

from purgatory import RelayUnavailable, timeout
from purgatory.relay import _redis_scripts as lua
from purgatory.relay._address import hosts_of, require_address, without_options, without_password
from purgatory.relay._connection import Connection, last_words
from purgatory.relay._forgetting import MAX_FORGOTTEN, horizon
from purgatory.relay._messages import Change, ChangeMessage, Delivery, ReadResult
from purgatory.relay._store import (
    MAX_SETTLED_BYTES,
    NotWritten,
    Password,
    Refused,
    current,
    refuse_connection,
)

REFUSAL: Final = re.compile("permission|ACL failure|executing the script can't", re.IGNORECASE)
"""Matches the errors for missing rights, of all versions of the servers, also from scripts."""

ASK_TIMEOUT: Final = 1.0
"""Seconds within which a node or a Sentinel must answer, if there are further ones to ask."""

SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password")

MAX_ROWS_PER_READ: Final = 5_000
"""Limit of changes per read."""


@final
class Credentials(CredentialProvider):
    """A user, and its password for each new connection."""

    def __init__(self, user: str, password: Password) -> None:
        self._user, self._password = user, password

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """The arguments of AUTH."""
        password = await current(self._password)
        return (self._user, password) if self._user else (password,)


@final
class RedisStore:
    """The store at `redis://host:port/database`, `rediss://...` or `unix:///socket?db=0`; also at
    `valkey://...` or `valkeys://...`, and at the server that Sentinels name,
    `redis+sentinel://host1:port,host2:port/service/database`. See `purgatory.relay.Store`."""

    def __init__(self, url: str, prefix: str, password: Password | None = None) -> None:
        # All servers support version 2 of the protocol. Callers set time limits and retry. The same
        # options in the address would override these.
        self._options: dict[str, Any] = {
            "protocol": 2,
            "socket_timeout": None,
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": False,
            "encoding": "utf-8",
        }
        self.address = without_password(url)
        self._password = password
        has_sentinels = "+sentinel:" in url.partition("//")[0].lower()
        given = require_address(url, takes_several_hosts=has_sentinels)
        self._url = without_options(given, {*self._options, *SENTINEL_OPTIONS})
        parts = urlsplit(self._url)
        self._service = ""
        """Name under which Sentinels know the servers; empty without Sentinels."""
        self._sentinel_user: dict[str, Any] = {}
        if has_sentinels:
            self._service, _, database = unquote(parts.path).strip("/").partition("/")
            if not self._service:
                raise ValueError(
                    f"cannot use {self.address}: expected the name of the service after the hosts, "
                    "redis+sentinel://host1:26379,host2:26379/service/0"
                )
            self._url = urlunsplit(parts._replace(path=f"/{database or 0}"))
            self._sentinel_user = {
                name.removeprefix("sentinel_"): value
                for name, value in parse_qsl(urlsplit(given).query)
                if name in SENTINEL_OPTIONS
            }
        self._hosts = deque(hosts_of(self._url))
        """Hosts to ask which server has the keys; the next one first."""
        self._host = ""
        """The server that has the keys, as last found."""
        self._moves = 0
        """How often that changed, or a server turned out to be a replica."""
        self._moves_at = WeakKeyDictionary[Redis, int]()
        """Clients -> `_moves` when each was made; an older one may be of another server, to which it
        connects again by itself."""
        try:
            client = self._make_client(self._hosts[0], is_found=True)
            pool: Any = client.connection_pool
            pool.make_connection()  # checks the options; it does not connect
        except (TypeError, ValueError):  # their texts may have values, and so secrets
            names = ", ".join(name for name, _ in parse_qsl(urlsplit(self._url).query))
            raise ValueError(
                f"cannot use {self.address}: an option of the client has a wrong name or value, "
                f"one of {names}"
            ) from None
        self._reader, self._writer, self._listener = (Connection[Redis](self) for _ in range(3))
        self._is_cluster = False
        self._names = [f"{{{prefix}}}:versions", f"{{{prefix}}}:order"]
        self._channel = f"{{{prefix}}}:news:{pool.connection_kwargs.get('db') or 0}"
        register = client.register_script
        self._scripts = {text: register(lua.BEGIN + text) for text in lua.ON_VERSIONS}
        self._scripts |= {text: register(text) for text in lua.ON_VALUES}
        self._prefix = prefix

    async def open(self) -> None:
        """See `Store.open`."""
        refused = await self._run_script(lua.RIGHTS, keys=[self._value_name(token_hex(8))])
        if refused:
            names = ", ".join(word.decode() for word in refused)
            raise Refused(
                f"cannot use {self.address}: its user has no permission to run {names} on the keys "
                f"{{{self._prefix}}}:* and the channel {self._channel}"
            )
        await self.write(())

    async def close(self) -> None:
        """See `Store.close`."""
        await gather(*(each.close() for each in (self._reader, self._writer, self._listener)))

    async def connect(self, current: Redis | None) -> Redis:
        """See `Server.connect`. Asks which server has the keys, unless `current` is its client."""
        if current is not None and self._moves_at[current] == self._moves:
            await connect(current)
            return current
        host, limit = self._hosts[0], ASK_TIMEOUT if len(self._hosts) > 1 else None
        self._hosts.rotate(-1)  # the next attempt asks another one, also if this one hangs
        client = self._make_client(host)
        try:
            async with timeout(limit):
                await connect(client)
                found = await self._ask(client, host)
            if found != self._host:
                self._host, self._moves = found, self._moves + 1
            if found == host:
                self._hosts.remove(host)
                self._hosts.appendleft(host)
            else:
                self._writer.discard(client)
                client = self._make_client(found, is_found=True)
                await connect(client)
        except BaseException:
            self._writer.discard(client)
            raise
        self._moves_at[client] = self._moves
        return client

    async def disconnect(self, connection: Redis, _is_broken: bool) -> None:
        """See `Server.disconnect`."""
        await connection.aclose()

    def kind_of(self, error: Exception) -> type[Exception] | None:
        """See `Server.kind_of`."""
        if "FOREIGN" in str(error) or "WRONGTYPE" in str(error):
            return ValueError
        if "read only replica" in str(error):
            self._moves += 1
        if isinstance(error, (ResponseError, BusyLoadingError)):  # refused by the server
            return Refused if REFUSAL.search(str(error)) else NotWritten
        return RelayUnavailable if isinstance(error, (RedisError, OSError)) else None

    async def _ask(self, client: Redis, host: str) -> str:
        """The host that has the keys, as `host` says."""
        ask: Any = client.execute_command
        if self._service:
            found = await ask("SENTINEL GET-MASTER-ADDR-BY-NAME", self._service)
            if not found:
                raise NotWritten(f"the Sentinel at {host} knows no server of {self._service!r}")
            return netloc(*found)
        try:
            slots = await ask("CLUSTER SLOTS")
        except ResponseError:  # no cluster
            self._is_cluster = False
            return host
        self._is_cluster = True
        slot = key_slot(self._names[0].encode())
        nodes, owner = hosts_of(self._url), ""
        for first, last, *servers in slots:
            # The host is empty if a node does not know its own name.
            names = [
                netloc(each[0] or urlsplit(f"//{host}").hostname or "", each[1]) for each in servers
            ]
            nodes += names
            if first <= slot <= last:
                owner = names[0]
        if not owner:
            raise NotWritten(f"no node of the cluster has the slot of {self._names[0]}")
        known = [each for each in self._hosts if each in nodes]
        self._hosts = deque(dict.fromkeys([*known, *nodes]))
        return owner

    def _make_client(self, host: str, is_found: bool = False) -> Redis:
        """A client of the server or Sentinel at `host`."""
        parts = urlsplit(self._url)
        user, at, _ = parts.netloc.rpartition("@")
        options = dict(self._options)
        if self._service and not is_found:
            url = urlunsplit(parts._replace(netloc=host, path=""))
            options |= self._sentinel_user
        else:
            if self._password is not None:
                name = unquote(user.partition(":")[0])
                options["credential_provider"] = Credentials(name, self._password)
                user = at = ""
            # Not by `urlunsplit`, which drops the slashes of a socket's address, without a host.
            url = self._url.replace(f"//{parts.netloc}", f"//{user}{at}{host}", 1)
        return Redis.from_url(url, **options)

    async def _run_script(
        self,
        script: str,
        *arguments: Any,
        keys: Sequence[str] | None = None,
        on: Connection[Redis] | None = None,
    ) -> Any:
        """Runs a script, by default on the keys of the versions and by the writer."""
        async with (on or self._writer).use() as client:
            common = (self._channel, self._publish, token_hex(4))
            return await self._scripts[script](
                keys=self._names if keys is None else keys,
                args=[*common, *arguments],
                client=client,
            )

    # -- versions

    async def read(self, keys: Sequence[str], since: int | None) -> ReadResult:
        """See `Store.read`."""
        names = [f"v:{key}" for key in keys]
        reply = await self._run_script(
            lua.READ, "" if since is None else since, MAX_ROWS_PER_READ, *names, on=self._reader
        )
        epoch, position, changed, numbers = reply[0].decode(), int(reply[1]), reply[2], reply[3]
        versions = dict(zip(keys, map(int, numbers[len(changed) // 2 :]), strict=True))
        latest, has_more = position, len(changed) == 2 * MAX_ROWS_PER_READ
        if has_more:
            position = int(changed[-1]) - 1  # the last position may have more changes
        for name, at, number in zip(changed[::2], changed[1::2], numbers, strict=False):
            if int(at) <= position:
                versions[name[2:].decode()] = int(number)
        return ReadResult(
            epoch, position, versions, has_more, latest, since is not None and since < int(reply[4])
        )

    async def write(self, changes: Sequence[Change], connection: Any = None) -> ChangeMessage:
        """See `Store.write`."""
        refuse_connection(self, connection)
        arguments = [
            word
            for key, floor, increment in changes
            for word in (f"v:{key}", dumps(key), floor, increment)
        ]
        epoch, after, position, versions = await self._run_script(lua.WRITE, *arguments)
        return ChangeMessage(
            epoch.decode(),
            int(after),
            int(position),
            {change[0]: int(text) for change, text in zip(changes, versions, strict=True)},
        )

    async def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        await self._run_script(lua.FORGET, "", "", 0, "", *(f"v:{key}" for key in keys))

    async def forget_unwritten(self, seconds: float) -> bool:
        """See `Store.forget_unwritten`. Several processes may overwrite each other's samples, which
        are all valid."""
        epoch, now, position, before = await self._run_script(lua.AGE)
        samples, last = horizon(loads(before), float(now), int(position), seconds)
        count: int = await self._run_script(lua.FORGET, dumps(samples), last, MAX_FORGOTTEN, epoch)
        return count == MAX_FORGOTTEN

    async def renew(self, epoch: str) -> None:
        """See `Store.renew`."""
        await self._run_script(lua.RENEW, epoch)

    # -- deliveries

    async def settle(
        self, deliveries: Sequence[Delivery], connection: Any = None
    ) -> Mapping[str, bool]:
        """See `StoreWithDeliveries.settle`."""
        refuse_connection(self, connection)
        arguments = [
            word
            for key, value, ttl, token in deliveries
            for word in (dumps(key), token + value, ceil(ttl * 1_000.0))
        ]
        names = [self._value_name(delivery.key) for delivery in deliveries]
        reply = await self._run_script(lua.SETTLE, *arguments, keys=names)
        return {
            delivery.key: bool(is_settled)
            for delivery, is_settled in zip(deliveries, reply, strict=True)
        }

    async def settled(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """See `StoreWithDeliveries.settled`."""
        names = [self._value_name(key) for key in keys]
        reply = await self._run_script(lua.SETTLED, MAX_SETTLED_BYTES, keys=names, on=self._reader)
        return {
            key: value[16:] for key, value in zip(keys, reply, strict=True) if value is not None
        }

    def _value_name(self, key: str) -> str:
        return f"{{{self._prefix}}}:settled:{key}"

    # -- messages

    async def listen(
        self, on_subscribed: Callable[[], None], on_message: Callable[[bytes | str], None]
    ) -> None:
        """See `Store.listen`."""
        async with self._listener.use() as client, client.pubsub() as pubsub:
            subscribe = pubsub.ssubscribe if self._is_cluster else pubsub.subscribe
            await subscribe(self._channel)
            async for message in pubsub.listen():
                if message["type"] in ("message", "smessage"):
                    on_message(message["data"])
                elif message["type"] in ("subscribe", "ssubscribe"):
                    on_subscribed()  # also after the client itself has connected again
                else:  # the server has ended it, since the slot belongs to another node now
                    self._moves += 1
                    raise NotWritten("the server has ended the subscription")

    @property
    def _publish(self) -> str:
        return "SPUBLISH" if self._is_cluster else "PUBLISH"

    async def send(self, payload: bytes) -> None:
        """See `Store.send`."""
        async with self._writer.use() as client:
            publish: Any = client.execute_command
            await publish(self._publish, self._channel, payload)


async def connect(client: Redis) -> None:
    """Connects a client to its server.

    Raises:
        LostConnection: the server cannot be reached, or closes each new connection, as beyond its
            `maxclients`; then with its words.
    """
    pool: Any = client.connection_pool
    try:
        await pool.release(await pool.get_connection())
    except LostConnection as error:
        if type(error) is not LostConnection:  # an answer, such as to a wrong password
            raise
        at = pool.make_connection()
        is_local = hasattr(at, "path")
        words = await last_words(
            open_unix_connection(at.path) if is_local else open_connection(at.host, at.port)
        )
        raise LostConnection(words or str(error)) from error


def netloc(host: bytes | str, port: int) -> str:
    """Host and port as in an address, where an IPv6 address is in brackets."""
    name = host if isinstance(host, str) else host.decode()
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
