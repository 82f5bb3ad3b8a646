"""Arguments that are refused, of `Relay` and of `blocking.Relay`, and addresses that are
understood."""

import asyncio
from types import SimpleNamespace

import pytest

from purgatory import OperationTimeout
from purgatory.relay import Relay, blocking
from purgatory.relay._address import hosts_of, require_address, without_password
from purgatory.relay._store import open_store

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("method", "arguments", "options", "error", "match"),
    [
        ("bump", (7,), {}, TypeError, "expected a key of type str, got 7"),
        ("wait", (b"a", 0), {}, TypeError, "expected a key of type str, got b'a'"),
        ("version", ("ä" * 257,), {}, ValueError, "at most 512 bytes, got 514"),
        ("bump", ("\ud800",), {}, ValueError, "cannot encode the key"),
        ("advance", ("a", -1), {}, ValueError, r"version must be from 0 to 2\*\*52, got -1"),
        ("advance", ("a", 2**52 + 1), {}, ValueError, r"version must be from 0 to 2\*\*52"),
        ("advance", ("a", 1.0), {}, TypeError, "version must be an integer, got 1.0"),
        ("advance", ("a", True), {}, TypeError, "version must be an integer, got True"),
        ("wait", ("a", 2**53 + 1), {}, ValueError, r"seen must be from 0 to 2\*\*53"),
        ("wait", ("a", 0, NAN), {}, ValueError, "NaN"),
        ("wait", ("a", 0), {"epoch": 7}, TypeError, "epoch must be a str, got 7"),
        ("bump", ("a",), {"connection": object()}, TypeError, "takes no connection"),
        ("deliver", ("a", "text"), {"ttl": 1}, TypeError, "must be bytes, got 'text'"),
        ("deliver", ("a", bytearray(b"x")), {"ttl": 1}, TypeError, "must be bytes"),
        ("deliver", ("a", bytes((1 << 20) + 1)), {"ttl": 1}, ValueError, "1048576 .* got 1048577"),
        ("deliver", ("a", b""), {"ttl": 0}, ValueError, "ttl must be a positive number .*, got 0"),
        ("deliver", ("a", b""), {"ttl": NAN}, ValueError, "got nan"),
        ("deliver", ("a", b""), {"ttl": INFINITY}, ValueError, "got inf"),
        ("deliver", ("a", b""), {"ttl": "1"}, TypeError, "must be a number of seconds, got '1'"),
        ("deliver", ("a", b""), {"ttl": True}, TypeError, "got True"),
        ("deliver", (7, b""), {"ttl": 1}, TypeError, "a key of type str, got 7"),
    ],
)
async def test_bad_argument_is_refused_and_changes_nothing(
    file_relay, tmp_path, method, arguments, options, error, match
):
    async with file_relay() as here:
        with pytest.raises(error, match=match):
            await getattr(here, method)(*arguments, **options)
        if hasattr(blocking.Relay, method) and "connection" not in options:
            with (
                blocking.Relay(f"file://{tmp_path}/app", timeout=60) as there,
                pytest.raises(error, match=match),
            ):
                await asyncio.to_thread(getattr(there, method), *arguments, **options)
        assert await here.version("a") == 0
        with pytest.raises(OperationTimeout):
            await here.receive("a", 0)
        assert here.statistics().watched == 0


SLASHES = "the port must be a number, and user and password must be written with %2F for /"
THREE_SLASHES = "file:///folder, with three slashes"
SEVERAL_HOSTS = "several hosts as in nats://host1:1234,host2:1234"


@pytest.mark.parametrize(
    ("store", "match"),
    [
        ("mysql://u:secret@host/db", "'mysql://host/db': the address must begin with file://"),
        ("nonsense", "must begin with file://"),
        ("u:secret@host:6379/0", "'host:6379/0': the address must begin with file://"),
        ("postgresql+psycopg://host/d", "must begin with .*postgresql://"),
        ("redis://user:of/secret@host/0", f"cannot use 'redis://host/0': {SLASHES}"),
        ("redis://user:12/secret@host/0", SLASHES),
        ("valkey://user:of/secret@host/0", SLASHES),
        ("postgresql://user:of?secret@host/db", "cannot use 'postgresql://host/db'"),
        ("postgresql://user:of#secret@host/db", "cannot use 'postgresql://host/db'"),
        ("postgresql://host:secret/db", "the port must be a number"),
        ("postgresql://a:secret,b/d", "the port must be a number"),
        ("file://user:secret@/app", THREE_SLASHES),
        ("file://app", THREE_SLASHES),
        ("file:///", "file:///folder"),
        ("redis://::1:6379/0", r"an IPv6 address must be written in brackets$"),
        ("redis://u:secret@a:1,b:2/0", "'redis://a:1,b:2/0': expected one host, got 2"),
        ("nats://u:secret@a:1,nats://u:secret@b:2", SEVERAL_HOSTS),
        ("redis://host/0?no_such_option=secret", "wrong name or value, one of no_such_option"),
        ("redis://host/0?port=secret", "redis://host/0: .* wrong name or value, one of port"),
        ("redis+sentinel://u:secret@a:1,b:2", r"the service after the hosts, redis\+sentinel://"),
        *((url, r"expected \w+://") for url in ("redis:/x", "redis:x", "rediss:/h:1", "nats:/x")),
        *((url, r"expected \w+://") for url in ("postgresql:/db", "unix:/s")),
    ],
)
def test_bad_address_is_refused_without_its_password(store, match):
    for kind in (Relay, blocking.Relay):
        with pytest.raises(ValueError, match=match) as raised:
            kind(store)
        assert "secret" not in str(raised.value)


POSITIVE = "(must be a positive|cannot be NaN)"


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"store": 7}, TypeError, "an address or have the methods of purgatory.relay.Store, got 7"),
        ({"prefix": "a-b"}, ValueError, "prefix must consist of"),
        ({"password": "secret"}, TypeError, "password must be a function"),
        ({"store": SimpleNamespace(listen=0), "password": str}, TypeError, "must be None with a"),
        *(
            ({name: "15"}, TypeError, f"{name} must be a number of seconds, not '15'")
            for name in ("resync", "forget_after")
        ),
        *(
            ({name: seconds}, ValueError, f"{name} {POSITIVE}")
            for name in ("resync", "timeout", "forget_after")
            for seconds in (0, -1.0, INFINITY, NAN)
        ),
        *(({"max_value": size}, ValueError, "max_value") for size in (0, -1)),
        *(({"max_value": size}, TypeError, "max_value") for size in (1.5, True, "1")),
    ],
)
def test_bad_setting_is_refused_by_name(tmp_path, options, error, match):
    kinds = [Relay, blocking.Relay] if options.keys() <= {"timeout", "max_value"} else [Relay]
    for kind in kinds:
        with pytest.raises(error, match=match):
            kind(**{"store": f"file://{tmp_path}", **options})


@pytest.mark.parametrize(
    ("url", "known", "hosts", "shown"),
    [
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0", ["[::1]:6379"], "redis://[::1]:6379/0"),
        ("redis://u:p@[::1]/0", "redis://u:p@[::1]/0", ["[::1]"], "redis://[::1]/0"),
        ("nats://[::1]:4222", "nats://[::1]:4222", ["[::1]:4222"], "nats://[::1]:4222"),
        ("Valkey://h:1/0", "redis://h:1/0", ["h:1"], "Valkey://h:1/0"),
        ("valkeys://h", "rediss://h", ["h"], "valkeys://h"),
        ("unix:///s?db=1", "unix:///s?db=1", [""], "unix:///s"),
        ("postgres://u:p@h/d", "postgresql://u:p@h/d", ["h"], "postgres://h/d"),
        ("postgresql+asyncpg://h/d", "postgresql://h/d", ["h"], "postgresql+asyncpg://h/d"),
        ("tls://h:4222", "tls://h:4222", ["h:4222"], "tls://h:4222"),
        ("nats://u:p@a:1,b", "nats://u:p@a:1,b", ["a:1", "b"], "nats://a:1,b"),
        (
            "redis+sentinel://u:p@a:1,b:2/main/3?sentinel_password=x",
            "redis://u:p@a:1,b:2/main/3?sentinel_password=x",
            ["a:1", "b:2"],
            "redis+sentinel://a:1,b:2/main/3",
        ),
        (
            "postgresql://[::1]:5,[::2]/d",
            "postgresql://[::1]:5,[::2]/d",
            ["[::1]:5", "[::2]"],
            "postgresql://[::1]:5,[::2]/d",
        ),
    ],
)
def test_address_is_understood(url, known, hosts, shown):
    assert require_address(url, takes_several_hosts=True) == known
    assert hosts_of(known) == hosts
    assert without_password(url) == shown
    assert repr(open_store(url, "test").address) == repr(shown)
