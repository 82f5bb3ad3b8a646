"""Attacks by other roles of a server and by senders of forged messages, and their limits."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import until
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from relay_waits import pair, recorded, refused, started
from servers import TIMEOUT, NatsServer, PostgresServer, served

from purgatory.relay import ChangeMessage, Relay, _membership, decode, encode, encode_settled
from purgatory.relay._messages import MAX_KEY_BYTES, MAX_NUMBER, NAME, Hint, Settled

PAGE = Path(__file__).parents[2] / "purgatory/relay/README.md"

# Decoders

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=10)
    | st.sampled_from(["e", "settled", "a" * 513, "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["k", "settled"]) | st.text(), inner)
    ),
    max_leaves=20,
)
NUMBERS = st.sampled_from([-2, -1, 0, 1, 7, 2**53, 2**53 + 1, 2**63, 2**64, 10**400])
MESSAGES = st.tuples(
    st.sampled_from(["e", "", "a\nb", '"', "x" * 65]) | JSON,
    NUMBERS | JSON,
    NUMBERS | JSON,
    st.dictionaries(st.sampled_from(["a", "", "x" * 513, "\ud800"]), NUMBERS | JSON, max_size=3),
)


def check_decoded(payload: bytes | str) -> None:
    try:
        message = decode(payload)
    except ValueError:
        return
    if isinstance(message, ChangeMessage):
        assert NAME.fullmatch(message.epoch)
        assert -1 <= message.after <= message.position <= MAX_NUMBER
        assert all(0 <= version <= MAX_NUMBER for version in message.versions.values())
        assert all(len(key.encode()) <= MAX_KEY_BYTES for key in message.versions)
        assert decode(encode(message)) == message
    elif isinstance(message, Hint | Settled):
        assert all(len(key.encode()) <= MAX_KEY_BYTES for key in message.keys)
    else:
        assert isinstance(message, str)


@settings(max_examples=500)
@given(
    st.binary(max_size=200) | st.text(max_size=200),
    MESSAGES | JSON,
    st.integers(0, 200),
    st.integers(0, 255),
)
def test_any_message_is_decoded_within_bounds(other, message, at, byte):
    check_decoded(other)
    payload = bytearray(json.dumps(message).encode())
    check_decoded(bytes(payload))
    if at < len(payload):
        payload[at] = byte
        check_decoded(bytes(payload))


def test_each_kind_of_message_is_decoded():
    change = ChangeMessage("e", 0, 1, {"a": 1})
    settled = [encode_settled(["a"], limit) for limit in (99, 9)]
    messages = [decode(each) for each in (encode(change), b'["a"]', *settled, b'"a probe"')]
    assert messages == [change, Hint(("a",)), Settled(("a",)), Settled(()), "a probe"]


REFUSED = {
    "nested": b"[" * 100_000,
    "digits": b"9" * 10_000,
    "large": json.dumps(["e", 0, 1, {f"key{n}": 1 for n in range(100_000)}]).encode(),
    "long key": json.dumps({"settled": ["a" * 513]}).encode(),
    "no key": b'{"settled": ["a", 7]}',
    "no list": b'{"settled": "a"}',
    "no part": b"{}",
    "long probe": b'"' + b"x" * 100 + b'"',
    "text": b'["e", 0, 1, {"a": "1"}]',
    "boolean": b'["e", 0, 1, {"a": 1, "b": true}]',
    "infinite": b'["e", 0, 1, {"a": 1e400}]',
    "negative": b'["e", 0, 1, {"a": -1}]',
    "above": b'["e", 0, 1, {"a": 9007199254740993}]',
    "position": b'["e", 0, 9007199254740993, {}]',
    "order": b'["e", 2, 1, {}]',
    "epoch": b'["a b", 0, 1, {}]',
}


@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED)
def test_message_beyond_bounds_is_refused(payload):
    with pytest.raises(ValueError, match="not a message of a relay") as caught:
        decode(payload)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1_000


async def test_forged_messages_cost_one_read_at_once(tmp_path):
    async with Relay(f"file://{tmp_path}", timeout=TIMEOUT) as relay:
        receiving = asyncio.create_task(relay.receive("a"))
        await until(lambda: relay.statistics().watched == 1)
        reads = recorded(relay._client, "settled")
        for _ in range(100):
            await relay._store.send(b'{"settled":["a","b"]}')
            await relay._store.send(b'{"settled":[]}')
        await relay._store.send(b'"last"')
        assert await relay.deliver("a", b"value", ttl=TIMEOUT)
        assert await receiving == b"value"
        assert all(keys == ["a"] for keys in reads)


async def test_flood_of_foreign_messages_is_one_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        async with Relay(f"file://{tmp_path}", timeout=TIMEOUT) as relay:
            for _ in range(500):
                await relay._store.send(b"\x1b[2J\nforged")
            await relay._store.send(b'"last"')
            await until(lambda: "not a message" in caplog.text)
            await asyncio.sleep(0.1)
    [record] = [each for each in caplog.records if "not a message" in each.getMessage()]
    assert record.getMessage().isprintable()


# Rights


async def do_all(url: str) -> None:
    """Does all that a relay does."""
    async with Relay(url, timeout=TIMEOUT, forget_after=600.0) as relay:
        waiting = asyncio.create_task(relay.wait("a", 0))
        assert await relay.bump("a") == await waiting == 1
        assert await relay.deliver("a", b"value", ttl=TIMEOUT)
        assert await relay.receive("a", TIMEOUT) == b"value"
        await relay.forget("a")
        await relay._store.forget_unwritten(0.001)
        epoch = relay.epoch
        await relay._store.renew(epoch)
        assert (await relay._store.read(["a"], 0)).epoch != epoch
        await relay._store.send(b'"a probe"')


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "cluster", "nats", "postgresql"])
async def test_rights_on_page_suffice(tmp_path, kind):
    page = PAGE.read_text()
    if kind == "nats":
        with nats_with_rights(tmp_path) as url:
            await do_all(url)
        return
    with served(kind, tmp_path) as server:
        url = server.url
        if kind == "postgresql":
            import asyncpg

            [rights] = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
            async with Relay(url, timeout=TIMEOUT):
                pass
            owner = await asyncpg.connect(url)
            await owner.execute("CREATE ROLE workers; CREATE ROLE worker LOGIN IN ROLE workers")
            await owner.execute(rights.replace("DATABASE app", "DATABASE postgres"))
            await owner.close()
            await do_all(url.replace("tester", "worker"))
            return
        [rule] = re.findall(r"ACL SETUSER workers on >password (.*?)```", page, re.DOTALL)
        more = ["+cluster|slots", "+ssubscribe", "+sunsubscribe", "+spublish"]
        assert all(word.removeprefix("+") in page for word in more)
        async with Redis.from_url(url) as admin:
            words = [*rule.split(), *more] if kind == "cluster" else rule.split()
            await admin.execute_command("ACL", "SETUSER", "workers", "on", ">x", *words)
            await do_all(url.replace("redis://", "redis://workers:x@"))


# Redis


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with served("redis", tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rights", "match"),
    [
        ("+@all -publish", "permission to run PUBLISH on"),
        ("+@all -@dangerous", "permission to run INFO on the keys {purgatory}:\\* and the channel"),
        ("+@all -zrem -hget -time", "permission to run TIME, HGET, ZREM on"),
        ("+@all -@write", "permission to run SET on"),
        ("resetchannels +@all", "can't publish to the channel"),
        ("+@all -subscribe", "permissions to run the 'subscribe' command"),
        ("resetkeys +@all", "permissions to access"),
    ],
)
async def test_redis_user_without_rights_is_told_when_opening(redis, rights, match):
    channels = [] if "resetchannels" in rights else ["allchannels"]
    words = ("ACL", "SETUSER", "app", "reset", "on", ">secret", "allkeys", *channels)
    assert redis.ask(*words, *rights.split()) == b"+OK\r\n"
    url = redis.url.replace("redis://", "redis://app:secret@")
    await refused(url, match)


@pytest.mark.slow
async def test_foreign_redis_value_hurts_no_neighbour(redis, prefix):
    foreign = f"{{{prefix}}}:settled:k7"
    redis.ask("LPUSH", foreign, "mine")
    keys = [f"k{number}" for number in range(20)]
    async with Relay(redis.url, prefix=prefix, timeout=TIMEOUT) as relay:
        deliveries = [relay.deliver(key, key.encode(), ttl=60) for key in keys]
        receives = [relay.receive(key, TIMEOUT) for key in keys]
        for calls, good in ((deliveries, True), (receives, None)):
            results = await asyncio.gather(*calls, return_exceptions=True)
            for key, result in zip(keys, results, strict=True):
                if key == "k7":
                    assert isinstance(result, ValueError) and "was left alone" in str(result)
                else:
                    assert result == (good or key.encode())
        assert redis.ask("LLEN", foreign) == b":1\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["SET versions x", "SET order x", "HSET versions name x", "ZADD order 1 x"]
)
async def test_foreign_keys_in_redis_are_refused(redis, prefix, command):
    verb, name, *words = command.split()
    key = f"{{{prefix}}}:{name}"
    redis.ask(verb, key, *words)
    before = redis.ask("DUMP", key), redis.ask("DBSIZE")
    with pytest.raises(ValueError, match=r"it is not a relay's, and was left alone"):
        await Relay(redis.url, prefix=prefix, timeout=TIMEOUT).__aenter__()
    assert (redis.ask("DUMP", key), redis.ask("DBSIZE")) == before


# NATS


NATS_SETTINGS = """
jetstream {{ max_memory_store: 200M }}
accounts {{ APP {{
    jetstream {{ {account} }}
    users [ {{ user: workers, password: x, permissions {{
        publish: {publish}, subscribe: {subscribe}
    }} }} ]
}} }}
"""


@contextmanager
def nats_with_rights(folder: Path, without: str = "", account: str = "") -> Iterator[str]:
    """The address of a server for a user with the page's rights, `without` one of them."""
    page = PAGE.read_text()
    [publish] = re.findall(r"publish:   (.*?)subscribe:", page, re.DOTALL)
    [subscribe] = re.findall(r"\nsubscribe: (.*?)```", page, re.DOTALL)
    rights = [json.dumps(sorted({*each.split()} - {without})) for each in (publish, subscribe)]
    settings = {"publish": rights[0], "subscribe": rights[1], "account": account or "max_mem: 100M"}
    path = folder / "nats.conf"
    path.write_text(NATS_SETTINGS.format(**settings))
    server = NatsServer(folder)
    server.command += ["--config", str(path)]
    try:
        server.start()
        yield server.url.replace("nats://", "nats://workers:x@")
    finally:
        server.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("without", "account", "match"),
    [
        ("purgatory_versions.>", "", r"(?i)permissions violation for publish to .purgatory_vers"),
        ("$JS.API.STREAM.*.purgatory_versions", "", r"(?i)violation for publish to .\$JS"),
        ("purgatory_news", "", r"(?i)permissions violation for (subscription|publish)"),
        ("", "max_mem: 100M, max_bytes_required: true", "account requires a limit in bytes"),
    ],
)
async def test_nats_user_without_rights_is_told_when_opening(tmp_path, without, account, match):
    with nats_with_rights(tmp_path, without, account) as url:
        await refused(url, match)


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Last-Sequence": "0", "Nats-Sequence": str(2**64)},
        {"Nats-Last-Sequence": "0", "Nats-Sequence": str(2**53)},
        {"Nats-Last-Sequence": "0"},
        {"Nats-Last-Sequence": "x", "Nats-Sequence": '1,{"a":5}],['},
    ],
)
async def test_forged_message_on_nats_makes_no_relay_deaf(tmp_path, headers):
    import nats

    with served("nats", tmp_path) as server:
        async with (
            Relay(server.url, resync=0.3, timeout=TIMEOUT) as here,
            Relay(server.url, timeout=TIMEOUT) as there,
        ):
            assert await there.bump("a") == 1
            waiting = await started(here, "a", 1)
            client = await nats.connect(server.url)
            forged = {"Purgatory-Epoch": here.epoch, **headers}
            await client.publish("purgatory_news", b'{"b":7}', headers=forged)
            await client.publish("purgatory_versions.key.=%%%", b"no version")
            await client.publish("purgatory_versions.key.=YWJj", b"9" * 30)
            await client.flush()
            await client.close()
            assert await there.bump("a") == 2
            assert await waiting in (1, 2)  # 1, if the epoch had to end
            assert await here.wait("a", 1) == 2
            assert await here.version("a") == 2
            assert await here.version("abc") == 0


# PostgreSQL


@pytest.fixture
def server(postgres):
    """A server in whose schema every role may create tables, as in PostgreSQL before 15."""
    postgres.run("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    postgres.run("GRANT ALL ON SCHEMA public TO PUBLIC")
    return postgres


VERSIONS, REPLIES = "purgatory_versions", "purgatory_settled"
SHAPE = "(key bytea PRIMARY KEY, version bigint NOT NULL, changed xid8 NOT NULL, epoch text)"
TABLE = f"CREATE UNLOGGED TABLE {VERSIONS} {SHAPE}"
OF_REPLIES = "(key bytea PRIMARY KEY, token bytea, expires timestamptz, value bytea)"
VIEW = "SELECT ''::bytea AS key, 0::bigint AS version, '0'::xid8 AS changed, ''::text AS epoch"
CODE = "CREATE FUNCTION evil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"


def app(server: PostgresServer) -> str:
    return server.url.replace("tester", "app")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "statements", "match"),
    [
        ("mallory", f"{TABLE}; GRANT ALL ON {VERSIONS} TO PUBLIC", "mallory: expected this role"),
        ("mallory", f"{TABLE}; GRANT SELECT ON {VERSIONS} TO PUBLIC", "belongs to mallory"),
        (
            "mallory",
            f"CREATE TABLE {REPLIES} {OF_REPLIES}; GRANT ALL ON {REPLIES} TO PUBLIC",
            "belongs to mallory",
        ),
        *(
            ("app", f"{CODE}; {TABLE}; {trap}", "is not a plain table")
            for trap in (
                f"CREATE TRIGGER t BEFORE INSERT ON {VERSIONS} FOR EACH ROW EXECUTE FUNCTION evil()",
                f"CREATE RULE r AS ON INSERT TO {VERSIONS} DO ALSO SELECT 1",
            )
        ),
        ("app", f"CREATE VIEW {VERSIONS} AS {VIEW} LIMIT 0", "is not a plain table"),
        (
            "app",
            "CREATE DOMAIN int8 AS bigint CHECK (VALUE > 7);"
            + TABLE.replace("bigint", "public.int8"),
            "is not a relay",
        ),
        ("app", f"CREATE TABLE {VERSIONS} (key text, version text)", "is not a relay's, and was"),
    ],
)
async def test_table_that_is_not_ours_is_refused(server, role, statements, match):
    server.run(statements, role)
    await refused(app(server), match)
    table = REPLIES if REPLIES in statements else VERSIONS
    assert server.run(f"SELECT count(*) FROM {table}") == "0\n"


@pytest.mark.slow
@pytest.mark.parametrize("owner", ["tester", "app", "owner"])
async def test_table_of_a_trusted_role_is_used(server, owner):
    """Also while another role holds an advisory lock."""
    import asyncpg

    server.run("GRANT owner TO app")
    server.run(f"{TABLE}; GRANT ALL ON {VERSIONS} TO app", owner)
    mallory = await asyncpg.connect(server.url.replace("tester", "mallory"))
    await mallory.execute(f"""SELECT pg_advisory_lock(hashtext('"{VERSIONS}"'))""")
    async with Relay(app(server), timeout=TIMEOUT) as relay:
        assert await relay.bump("a") == 1
    await mallory.close()


@pytest.mark.slow
async def test_role_without_rights_to_replies_is_told(server):
    async with Relay(server.url, timeout=TIMEOUT):
        pass
    rights = "SELECT, INSERT, UPDATE, DELETE"
    server.run(f"GRANT {rights} ON {VERSIONS} TO app")
    await refused(app(server), f"role app has no right to {rights} on its table .{REPLIES}")
    server.run(f"GRANT {rights} ON {REPLIES} TO app")
    await do_all(app(server))


@pytest.mark.slow
async def test_connecting_role_neither_lists_nor_adds_workers(server, monkeypatch):
    import asyncpg

    monkeypatch.setattr(_membership, "CALL_INTERVAL", 0.2)
    begun = time.monotonic()
    async with pair(app(server)) as (here, there):
        reads = recorded(here._client, "settled")
        mallory = await asyncpg.connect(server.url.replace("tester", "mallory"))
        oid = await mallory.fetchval("SELECT oid FROM pg_namespace WHERE nspname = 'public'")
        heard: list[str] = []
        channel = f"purgatory_news_{oid}"
        await mallory.add_listener(channel, lambda *words: heard.append(words[-1]))
        here.introduce(lambda: {"host": "secret", "pid": 1})
        there.introduce(lambda: {"host": "secret", "pid": 2})
        await until(lambda: [worker.about["pid"] for worker in here.workers()] == [2])
        await until(lambda: [worker.about["pid"] for worker in there.workers()] == [1])
        for number in range(512):
            forged = {"settled": ["\0workers", f"\0workers/m/{number}"]}
            await mallory.execute("SELECT pg_notify($1, $2)", channel, json.dumps(forged))
        assert await there.bump("a") == 1  # sent after them
        assert await here.wait("a", 0) == 1
        await asyncio.sleep(1.0)
        assert {worker.about["pid"] for worker in here.workers()} <= {2}
        await until(lambda: [worker.about["pid"] for worker in here.workers()] == [2])
        assert 1 <= len(reads) <= (time.monotonic() - begun) / _membership.READ_DELAY + 1
        assert any("workers" in each for each in heard)  # mallory did listen
        assert not [each for each in heard if "secret" in each or '"pid": 2' in each]
        for query in ("TABLE purgatory_settled", "TABLE purgatory_versions"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await mallory.fetch(query)
        await mallory.close()


@pytest.mark.slow
async def test_table_is_schema_qualified_on_callers_connection(server):
    import asyncpg

    connection = await asyncpg.connect(server.url, server_settings={"search_path": "nowhere"})
    async with Relay(app(server), timeout=TIMEOUT) as here:
        async with connection.transaction():
            assert await here.bump("a", connection=connection) == 1
            assert await here.advance("b", 7, connection=connection) == 7
            assert await here.version("b") == 0
        assert await here.version("a") == 1
        assert await here.version("b") == 7
    await connection.close()
