"""A store in Redis, or Valkey: two keys, one more for each delivered value, and two channels.

    {purgatory}:versions        hash: epoch, server, position, floor, and v:orders/7 -> its version
    {purgatory}:order           sorted set: v:orders/7 -> position of its last write
    {purgatory}:settled:pay/7   a token of 16 bytes and the delivered value, with a time to live
    {purgatory}:news:0          channel of database 0, since channels ignore databases
    {purgatory}:news:0:quiet    channel of all messages except changes, for processes without waits

Each operation is one script, so a version is raised and published in one step. FLUSHALL or eviction
removes the epoch together with the versions, and the next script begins a new epoch. It also does
so on another server than the epoch's first: a restarted server may have loaded an older dump, and a
promoted replica may lack the last writes. Reading the server's run_id takes 6 µs of its time.

All keys share one channel. Each process with waits receives each write, which costs it 40 µs if it
has no waits for the key. A channel for each key would cost a subscription, its confirmation and a
read for the first wait of each key, and all of these at once after a lost connection. On one
channel the positions show missing messages.

A process is subscribed to one of the two channels. To switch, it subscribes to the other, too, and
leaves the first after the confirmation. The client resubscribes by itself after a lost connection;
the only trace is another confirmation, the first one on its connection, which `listen` reports. On
a cluster the braces put all keys into one slot, and messages go through sharded channels; so a
relay uses only one node.
"""

import re
from asyncio import Future, get_running_loop
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from json import dumps, loads
from math import ceil
from secrets import token_hex
from typing import Any, Final, final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from purgatory._core.errors import how_to_install

try:
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import BusyLoadingError, ReadOnlyError, RedisError, ResponseError
except ImportError as error:
    raise ImportError(f"a relay over Redis needs its client: {how_to_install('redis')}") from error

from purgatory import RelayUnavailable
from purgatory.relay._address import check_address, without_options, without_password
from purgatory.relay._forgetting import MAX_FORGOTTEN, horizon
from purgatory.relay._messages import Change, ChangeMessage, Delivery, ReadResult
from purgatory.relay._store import MAX_SETTLED_BYTES, NotWritten, Refused, refuse_connection

REFUSAL: Final = re.compile("permission|ACL failure|executing the script can't", re.IGNORECASE)
"""Matches the errors for missing rights, of all versions of the servers, also from scripts."""

DEMOTION: Final = re.compile("READONLY|MASTERDOWN")
"""Matches the errors of a replica, also from scripts."""

DROP_INTERVAL: Final = 1.0
"""Seconds between two drops of connections, while the address still leads to the replica."""

MAX_ROWS_PER_READ: Final = 5_000
"""Limit of changes per read."""

# KEYS: versions, order. ARGV: channel, command to publish, name of a possible new epoch, then the
# arguments of the operation. Versions and positions are below 2^53, so they are exact as Lua's
# numbers; but its tostring rounds them to 14 digits.
BEGIN: Final = """
local versions, order = redis.call('TYPE', KEYS[1]).ok, redis.call('TYPE', KEYS[2]).ok
local epoch, position, began_on, floor = false, false, false, false
if versions == 'hash' then
    epoch, position, began_on, floor =
        unpack(redis.call('HMGET', KEYS[1], 'epoch', 'position', 'server', 'floor'))
end
local info = redis.pcall('INFO', 'server')
local server = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
local function is_foreign()
    if versions ~= 'hash' and versions ~= 'none' then return true end
    if order ~= 'zset' and order ~= 'none' then return true end
    if versions == 'hash' then return not epoch end
    return order == 'zset' and not redis.call('ZSCORE', KEYS[2], 'epoch')
end
if not epoch or order ~= 'zset' then
    if is_foreign() then return redis.error_reply('FOREIGN keys') end
    redis.call('DEL', KEYS[1], KEYS[2])
    epoch, position, began_on, floor = ARGV[3], '0', server, '0'
    redis.call('HSET', KEYS[1], 'epoch', epoch, 'server', server, 'position', position)
    redis.call('ZADD', KEYS[2], -1, 'epoch')
end
if began_on ~= server then
    epoch = ARGV[3]
    redis.call('HSET', KEYS[1], 'epoch', epoch, 'server', server)
end
floor = floor or '0'
local function publish(channel, after, changes)
    local head = '["' .. epoch .. '",' .. after .. ',' .. position
    redis.call(ARGV[2], channel, head .. ',{' .. table.concat(changes, ',') .. '}]')
end
local function publish_epoch()
    for _, channel in ipairs({ARGV[1], ARGV[1] .. ':quiet'}) do publish(channel, position, {}) end
end
-- Redis does not undo a script after a refused command. So commands that may be refused come
-- first: rewrites of existing values, then the publication, and only then the writes.
local function check_writes()
    redis.call('HSET', KEYS[1], 'position', position)
    redis.call('ZADD', KEYS[2], -1, 'epoch')
end
if epoch == ARGV[3] then publish_epoch() end
"""

READ: Final = """
-- further ARGV: since or '', limit of changes, names
local changed = {}
if ARGV[4] ~= '' and tonumber(ARGV[4]) < tonumber(position) then
    changed = redis.call(
        'ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[4], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[5])
end
local names = {}
for i = 1, #changed, 2 do names[#names + 1] = changed[i] end
for i = 6, #ARGV do names[#names + 1] = ARGV[i] end
local numbers = {}
for first = 1, #names, 1000 do
    local some = {unpack(names, first, math.min(first + 999, #names))}
    for i, version in ipairs(redis.call('HMGET', KEYS[1], unpack(some))) do
        numbers[#numbers + 1] = version or floor
    end
end
return {epoch, position, changed, numbers, redis.call('HGET', KEYS[1], 'forgotten') or '0'}
"""

WRITE: Final = """
-- further ARGV, for each key: name, name in JSON, floor, increment; without keys, checks the rights
local after, numbers, changes, scores, fields = position, {}, {}, {}, {}
for i = 4, #ARGV, 4 do
    local before = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or floor)
    local version = math.max(before, tonumber(ARGV[i + 2])) + tonumber(ARGV[i + 3])
    local text = string.format('%.0f', version)
    numbers[#numbers + 1] = text
    if version > before then
        fields[#fields + 1], fields[#fields + 2] = ARGV[i], text
        changes[#changes + 1] = ARGV[i + 1] .. ':' .. text
    end
end
if #changes > 0 then
    check_writes()
    position = string.format('%.0f', tonumber(position) + #changes)
    publish(ARGV[1], after, changes)
    for i = 1, #fields, 2 do scores[i], scores[i + 1] = position, fields[i] end
    redis.call('HSET', KEYS[1], 'position', position, unpack(fields))
    redis.call('ZADD', KEYS[2], unpack(scores))
elseif #ARGV == 3 then
    check_writes()
    publish_epoch()
end
return {epoch, after, position, numbers}
"""

AGE: Final = """
local time = redis.call('TIME')
local samples = redis.call('HGET', KEYS[1], 'samples') or '[]'
return {epoch, time[1] + time[2] / 1e6 .. '', position, samples}
"""

FORGET: Final = """
-- further ARGV: samples or '', last position to forget or '', limit of keys, their epoch or '',
-- names
if ARGV[7] ~= '' and ARGV[7] ~= epoch then return 0 end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'samples', ARGV[4]) end
local names = {unpack(ARGV, 8)}
if ARGV[5] ~= '' then
    names = redis.call('ZRANGEBYSCORE', KEYS[2], '0', ARGV[5], 'LIMIT', 0, ARGV[6])
end
local highest, count = tonumber(floor), 0
local latest = tonumber(redis.call('HGET', KEYS[1], 'forgotten') or '0')
for _, name in ipairs(names) do
    local version = redis.call('HGET', KEYS[1], name)
    if version then
        highest = math.max(highest, tonumber(version))
        latest = math.max(latest, tonumber(redis.call('ZSCORE', KEYS[2], name)))
        redis.call('HDEL', KEYS[1], name)
        redis.call('ZREM', KEYS[2], name)
        count = count + 1
    end
end
if count > 0 then
    redis.call('HSET', KEYS[1], 'floor', string.format('%.0f', highest),
        'forgotten', string.format('%.0f', latest))
end
return count
"""

RENEW: Final = """
-- further ARGV: the epoch to end
if epoch == ARGV[4] then
    redis.call('HSET', KEYS[1], 'epoch', epoch)  -- a refusal comes here, before any change
    epoch = ARGV[3]
    publish_epoch()
    redis.call('HSET', KEYS[1], 'epoch', epoch)
end
return {epoch}
"""

SETTLE: Final = """
-- KEYS: names of the values. ARGV: channel, command to publish; then, for each key: its name in
-- JSON, its token with the value, its time to live in ms. Commands that may be refused come first:
-- SET with XX changes nothing on a missing key.
local settled, new, names = {}, {}, {}
for i = 1, #KEYS do
    local value = ARGV[3 * i + 1]
    local length = redis.call('STRLEN', KEYS[i])
    if length == 0 then
        redis.call('SET', KEYS[i], '', 'XX')
        new[#new + 1] = i
        names[#names + 1] = ARGV[3 * i]
        settled[i] = 1
    else
        settled[i] = redis.call('GETRANGE', KEYS[i], 0, 15) == string.sub(value, 1, 16) and 1 or 0
    end
end
if #new > 0 then
    redis.call(ARGV[2], ARGV[1], '{"settled":[' .. table.concat(names, ',') .. ']}')
end
for _, i in ipairs(new) do redis.call('SET', KEYS[i], ARGV[3 * i + 1], 'PX', ARGV[3 * i + 2]) end
return settled
"""

SETTLED: Final = """
-- KEYS: names of the values. ARGV: size at which the read ends, in bytes
local values, size = {}, 0
for i = 1, #KEYS do
    local value = size <= tonumber(ARGV[1]) and redis.call('GET', KEYS[i])
    values[i] = value
    if value then size = size + #value - 16 end
end
return values
"""


@final
class RedisStore:
    """The store at `redis://host:port/database`, `rediss://...` or `unix:///socket?db=0`; also at
    `valkey://...` or `valkeys://...`. See `purgatory.relay.Store`."""

    def __init__(self, url: str, prefix: str) -> None:
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
        self._url = without_options(check_address(url), self._options)
        try:
            self._seed = Redis.from_url(self._url, **self._options)
            pool: Any = self._seed.connection_pool
            pool.make_connection()  # checks the options; it does not connect
        except (TypeError, ValueError):  # their texts may have values, and so secrets
            names = ", ".join(name for name, _ in parse_qsl(urlsplit(self._url).query))
            raise ValueError(
                f"cannot use {self.address}: an option of the client has a wrong name or value, "
                f"one of {names}"
            ) from None
        self._client: Redis | None = None
        """Client of the server that has the keys; None until the first use."""
        self._is_cluster = False
        self._names = [f"{{{prefix}}}:versions", f"{{{prefix}}}:order"]
        self._channel = (
            f"{{{prefix}}}:news:{self._seed.connection_pool.connection_kwargs.get('db') or 0}"
        )
        self._quiet_channel = f"{self._channel}:quiet"
        self._may_drop_at = 0.0
        """Loop time from which connections to a replica may be dropped again."""
        self._is_interested = True
        self._pubsub: Any = None
        """The subscriptions, while it listens."""
        self._confirmed: Future[None] | None = None
        """Future of the latest `set_interest`, done at its confirmation."""
        self._scripts = {
            text: self._seed.register_script(BEGIN + text)
            for text in (READ, WRITE, AGE, FORGET, RENEW)
        }
        self._prefix = prefix
        self._settle_script, self._settled_script = map(
            self._seed.register_script, (SETTLE, SETTLED)
        )

    async def open(self) -> None:
        """See `Store.open`."""
        self._is_interested = True
        await self.write(())  # the user may lack the right to write or to publish

    async def close(self) -> None:
        """See `Store.close`."""
        await self._seed.aclose()
        if self._client is not None:
            await self._client.aclose()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Redis]:
        """A connected client of the server that has the keys. Translates its errors."""
        kind: type[RelayUnavailable] = NotWritten
        try:
            if self._client is None:
                self._client = await self._find_server()
            pool: Any = self._client.connection_pool
            await pool.release(await pool.get_connection())
            kind = RelayUnavailable
            yield self._client
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError) and (
                "FOREIGN" in str(error) or "WRONGTYPE" in str(error)
            ):
                names = " or ".join([*self._names, self._value_name("*")])
                raise ValueError(
                    f"cannot use {names} at {self.address}: it is not a relay's, and was left alone"
                ) from error
            if DEMOTION.search(str(error)) or isinstance(error, ReadOnlyError):
                await self._drop_connections()
            if isinstance(error, ResponseError) and self._client is not self._seed:
                self._client = None  # on a cluster the keys may have moved
            if isinstance(error, (ResponseError, BusyLoadingError)):  # refused by the server
                kind = Refused if REFUSAL.search(str(error)) else NotWritten
            raise kind(f"cannot use {self.address}: {error}") from error

    async def _drop_connections(self) -> None:
        """Drops the subscription and all idle connections: this server is a replica now, and the
        address may lead to another one. Other commands in flight get the same answer."""
        now = get_running_loop().time()
        if now < self._may_drop_at:
            return
        self._may_drop_at = now + DROP_INTERVAL
        with suppress(RedisError, OSError):  # some connection was lost already
            if self._pubsub is not None and self._pubsub.connection is not None:
                await self._pubsub.connection.disconnect(nowait=True)
            if self._client is not None:
                await self._client.connection_pool.disconnect(inuse_connections=False)

    async def _find_server(self) -> Redis:
        info: dict[str, Any] = await self._seed.info("cluster")
        self._is_cluster = bool(info.get("cluster_enabled"))
        if not self._is_cluster:
            return self._seed
        ask: Any = self._seed.execute_command
        slot = await ask("CLUSTER KEYSLOT", self._names[0])
        for first, last, [host, port, *_], *_ in await ask("CLUSTER SLOTS"):
            if first <= slot <= last:
                parts = urlsplit(self._url)
                # The host is empty if a node does not know its own name.
                known = host.decode() if host else parts.hostname or ""
                known = f"[{known}]" if ":" in known else known  # IPv6
                netloc = f"{parts.netloc.rpartition('@')[0]}@{known}:{port}"
                return Redis.from_url(
                    urlunsplit(parts._replace(netloc=netloc.removeprefix("@"))), **self._options
                )
        raise RelayUnavailable(
            f"cannot use {self.address}: no node of the cluster has the slot of {self._names[0]}"
        )

    async def _run_script(self, script: str, *arguments: Any) -> Any:
        async with self._connected() as client:
            common = (self._channel, self._publish, token_hex(4))
            return await self._scripts[script](
                keys=self._names, args=[*common, *arguments], client=client
            )

    # -- versions

    async def read(self, keys: Sequence[str], since: int | None) -> ReadResult:
        """See `Store.read`."""
        names = [f"v:{key}" for key in keys]
        reply = await self._run_script(
            READ, "" if since is None else since, MAX_ROWS_PER_READ, *names
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
        epoch, after, position, versions = await self._run_script(WRITE, *arguments)
        return ChangeMessage(
            epoch.decode(),
            int(after),
            int(position),
            {change[0]: int(text) for change, text in zip(changes, versions, strict=True)},
        )

    async def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        await self._run_script(FORGET, "", "", 0, "", *(f"v:{key}" for key in keys))

    async def forget_unwritten(self, seconds: float) -> bool:
        """See `Store.forget_unwritten`. Several processes may overwrite each other's samples, which
        are all valid."""
        epoch, now, position, before = await self._run_script(AGE)
        samples, last = horizon(loads(before), float(now), int(position), seconds)
        count: int = await self._run_script(FORGET, dumps(samples), last, MAX_FORGOTTEN, epoch)
        return count == MAX_FORGOTTEN

    async def renew(self, epoch: str) -> None:
        """See `Store.renew`."""
        await self._run_script(RENEW, epoch)

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
        async with self._connected() as client:
            reply = await self._settle_script(
                keys=[self._value_name(delivery.key) for delivery in deliveries],
                args=[self._channel, self._publish, *arguments],
                client=client,
            )
        return {
            delivery.key: bool(is_settled)
            for delivery, is_settled in zip(deliveries, reply, strict=True)
        }

    async def settled(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """See `StoreWithDeliveries.settled`."""
        names = [self._value_name(key) for key in keys]
        async with self._connected() as client:
            reply = await self._settled_script(keys=names, args=[MAX_SETTLED_BYTES], client=client)
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
        is_new = False
        async with self._connected() as client, client.pubsub() as pubsub:
            try:
                await self._subscribe(pubsub, self._wanted_channel)
                self._pubsub = pubsub
                async for message in pubsub.listen():
                    kind = message["type"]
                    if kind in ("message", "smessage"):
                        on_message(message["data"])
                    elif kind in ("subscribe", "ssubscribe"):
                        is_new = is_new or message["data"] == 1  # first one on its connection
                        if await self._on_confirmed(pubsub, message["channel"].decode()) and is_new:
                            is_new = False
                            on_subscribed()
            finally:
                self._pubsub = None
                self._set_confirmed()

    async def set_interest(self, is_wanted: bool) -> None:
        """See `StoreWithInterest.set_interest`."""
        self._is_interested = is_wanted
        pubsub = self._pubsub
        if pubsub is None:
            return
        confirmed = self._confirmed = get_running_loop().create_future()
        try:
            # Not `pubsub.subscribe`: after a lost connection it reconnects, concurrently with the
            # listening task, on the same socket. The listening task resubscribes by itself.
            if pubsub.connection.is_connected:
                verb = "SSUBSCRIBE" if self._is_cluster else "SUBSCRIBE"
                await pubsub.connection.send_command(verb, self._wanted_channel, check_health=False)
        except (RedisError, OSError) as error:
            raise RelayUnavailable(f"cannot use {self.address}: {error}") from error
        await confirmed

    @property
    def _publish(self) -> str:
        return "SPUBLISH" if self._is_cluster else "PUBLISH"

    @property
    def _wanted_channel(self) -> str:
        return self._channel if self._is_interested else self._quiet_channel

    async def _subscribe(self, pubsub: Any, channel: str) -> None:
        await (pubsub.ssubscribe if self._is_cluster else pubsub.subscribe)(channel)

    async def _on_confirmed(self, pubsub: Any, channel: str) -> bool:
        """Handles the confirmation of a subscription. Returns whether it is the wanted one, and
        then leaves the other."""
        wanted = self._wanted_channel
        subscribed = {
            name.decode()
            for name in (pubsub.shard_channels if self._is_cluster else pubsub.channels)
        }
        if wanted not in subscribed:  # the client does not track it, and would not renew it
            await self._subscribe(pubsub, wanted)
        if channel != wanted:
            return False
        self._set_confirmed()
        for name in subscribed - {wanted}:
            await (pubsub.sunsubscribe if self._is_cluster else pubsub.unsubscribe)(name)
        return True

    def _set_confirmed(self) -> None:
        if self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_result(None)

    async def send(self, payload: bytes) -> None:
        """See `Store.send`."""
        async with self._connected() as client, client.pipeline(transaction=False) as pipeline:
            publish: Any = pipeline.execute_command
            for channel in (self._channel, self._quiet_channel):
                publish(self._publish, channel, payload)
            await pipeline.execute()
