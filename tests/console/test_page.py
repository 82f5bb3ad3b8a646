"""The page's application: access, contents, and its cost without a viewer; called as by a
server."""

import asyncio
import json
import os
import re
import socket
import tracemalloc
from collections import namedtuple
from fractions import Fraction
from math import inf, nan
from time import sleep

import pytest
from asgi_requests import Request, lifespan
from helpers import raiser
from loops import on_asyncio, on_virtual_time

from purgatory import DelayedOperation, Purgatory, ThresholdPurgatory
from purgatory._local import refusal
from purgatory.asgi import Ending, LongPolls, Versions
from purgatory.asgi._request import query_parameter
from purgatory.console import console
from purgatory.console._describe import shown, text_of
from purgatory.metrics import Meter
from purgatory.relay import Relay as RealRelay
from purgatory.relay import RelayStatistics, Worker
from purgatory.testing import DeadlockError

LOCAL = {"host": "127.0.0.1:8000"}


class Fetch(DelayedOperation[None]):
    def try_complete(self) -> bool:
        return False


def asking(app, path="/", headers=LOCAL, query=b"", *, root_path="", host="127.0.0.1", **options):
    """A request."""

    async def mounted(scope, receive, send):
        scope["root_path"] = root_path
        await app(scope, receive, send)

    return Request(mounted, query, headers, path=path, host=host, **options)


async def ask(*args, **options):
    """A request and its answer."""
    return await asking(*args, **options).done()


async def state_of(app, tag=None, query=b""):
    """The state that the page gets, and its tag."""
    headers = LOCAL | ({} if tag is None else {"if-none-match": tag})
    answer = await ask(app, "/state", headers, query)
    assert answer.status == 200, answer.content
    return json.loads(answer.content), answer.headers["etag"]


# -- access


PATHS = ("/", "/state", "", "/nothing", "/../state", "//state", "/state/")


@on_virtual_time
@pytest.mark.parametrize(
    ("client", "headers"),
    [
        ("192.0.2.1", LOCAL),
        ("127.0.0.1", {"host": "example.com"}),
        ("127.0.0.1", LOCAL | {"x-forwarded-for": "127.0.0.1"}),
    ],
)
async def test_visitor_who_is_not_local_gets_403(client, headers):
    app = console(Purgatory("secret name"))
    rule = refusal(Request(app, headers=headers, host=client).scope)
    assert rule
    for path in PATHS:
        answer = await ask(app, path, headers, host=client)
        assert answer.status == 403
        assert f"This request was refused because {rule}" in answer.content.decode()
        assert b"secret" not in answer.content and b"<script" not in answer.content


@on_virtual_time
@pytest.mark.parametrize("is_async", [False, True])
async def test_authorize_alone_decides(is_async):
    def may(scope):
        return query_parameter(scope, "token") == "a b"

    async def may_later(scope):
        await asyncio.sleep(1)
        return may(scope)

    app = console(authorize=may_later if is_async else may)
    elsewhere = {"host": "example.com", "x-forwarded-for": "192.0.2.1"}
    refusal = b"This page was not shown: console(authorize=...) has refused this request.\n"
    for path in ("/", "/state"):
        answer = await ask(app, path, elsewhere, b"token=a+b", host="192.0.2.1")
        assert answer.status == 200
        for headers, host in ((elsewhere, "192.0.2.1"), (LOCAL, "127.0.0.1")):
            answer = await ask(app, path, headers, host=host)
            assert (answer.status, answer.content) == (403, refusal)


@on_virtual_time
async def test_who_cannot_decide_lets_nobody_in():
    request = asking(console(authorize=raiser(LookupError("the database is away"))))
    with pytest.raises(LookupError):
        await request.done()
    assert request.answer == []


@on_virtual_time
@pytest.mark.parametrize(
    ("path", "site", "status"),
    [
        *(("/state", site, 403) for site in ("cross-site", "same-site", "nonsense")),
        ("/", "cross-site", 200),  # a link leads to the page itself
        ("/state", "same-origin", 200),
        ("/state", "none", 200),
    ],
)
async def test_cross_site_requests_are_refused(path, site, status):
    assert (await ask(console(), path, LOCAL | {"sec-fetch-site": site})).status == status


@on_virtual_time
async def test_websockets_are_refused():
    received, sent = asyncio.Queue(), asyncio.Queue()
    received.put_nowait({"type": "websocket.connect"})
    local = {"headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 5)}
    await console()({"type": "websocket", "path": "/state", **local}, received.get, sent.put)
    assert sent.get_nowait() == {"type": "websocket.close", "code": 1008} and sent.empty()


# -- answers


@on_virtual_time
async def test_each_page_has_its_own_nonce():
    nonces = set()
    for _ in range(3):
        answer = await ask(console())
        policy, page = answer.headers["content-security-policy"], answer.content.decode()
        [nonce] = {*re.findall(r"'nonce-([\w-]{20,})'", policy)}
        assert re.findall(r"<(?:script|style)[^>]*>", page) == [
            f'<style nonce="{nonce}">',
            f'<script nonce="{nonce}">',
        ]
        assert {"default-src 'none'", "frame-ancestors 'none'"} <= {*policy.split("; ")}
        assert "unsafe" not in policy
        nonces.add(nonce)
    assert len(nonces) == 3


@on_virtual_time
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", path, 200) for path in ("/", "/state")),
        ("HEAD", "/", 200),
        ("HEAD", "/state", 404),
        ("GET", "", 307),
        *(("GET", path, 404) for path in ("/nothing", "/state/", "//state", "/State", "/../state")),
        *(("GET", path, 404) for path in ("/state\0", "/page.html", "/./state", "/state/x")),
        *((method, "/", 405) for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE")),
        ("POST", "/state", 405),
    ],
)
async def test_answers_forbid_caching_framing_and_sharing(method, path, status):
    answer = await ask(console(), path, method=method)
    headers = answer.headers
    assert answer.status == status
    assert (headers["cache-control"], headers["x-frame-options"]) == ("no-store", "DENY")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert not [each for each in headers if each.startswith(("set-cookie", "access-control"))]
    if status == 405:
        assert headers["allow"] == "GET, HEAD"
    if method == "HEAD" and path == "/":
        assert answer.content == b"" and int(headers["content-length"]) > 10_000


@on_virtual_time
@pytest.mark.parametrize("prefix", ["/purgatory", "/a/b", "/a b/ü", "/purgatory/"])
async def test_it_may_be_mounted_under_any_prefix(prefix):
    bare = prefix.rstrip("/")
    app = console()
    for path in (f"{bare}/", f"{bare}/state", "/state"):  # some servers take the prefix off
        assert (await ask(app, path, root_path=prefix)).status == 200
    answer = await ask(app, bare, query=b"token=a%20b&x=%C3%A9", root_path=prefix)
    folder = {"/purgatory": "purgatory", "/a/b": "b", "/a b/ü": "%C3%BC"}[bare]
    expected = (307, f"./{folder}/?token=a%20b&x=%C3%A9")
    assert (answer.status, answer.headers["location"]) == expected
    assert (await ask(app, f"{bare}state", root_path=prefix)).status == 404


# -- contents


@on_virtual_time
async def test_state_has_pending_ended_and_missed():
    meter, polls = Meter(), LongPolls(max_open=7)
    jobs, versions = Purgatory("jobs", observer=meter), ThresholdPurgatory("versions")
    app = console(jobs, versions, polls=polls, meter=meter)
    async with jobs:
        waiting = asyncio.create_task(versions.wait("a", 1, timeout=50))
        for number in range(5):
            jobs.try_complete_else_watch(Fetch(0.5 if number == 0 else 30), ["news", number])
        late: list[bool] = []
        missed = asyncio.create_task(jobs.wait_for(lambda: bool(late), ["forgotten"], 1))
        await asyncio.sleep(0.75)
        late.append(True)
        await asyncio.sleep(0.5)
        state, _ = await state_of(app)
        versions.advance("a", 1)
        await asyncio.gather(waiting, missed)
    about, thresholds = state["purgatories"]
    counts = {"pending": 4, "expired": 1, "completed": 1, "missed": 1, "lookedAt": 4}
    assert about.items() >= {"name": "jobs", **counts}.items()
    assert about["oldest"][0] == {
        "kind": "Fetch", "keys": ["'news'", "1"], "moreKeys": 0, "count": 1, "waited": 1.25, "left": 28.75
    }  # fmt: skip
    assert about["hottest"][0] == {"key": "'news'", "waiting": 4}
    assert [(each["keys"], each["timeout"], each["ago"]) for each in about["missedLast"]] == [
        (["'forgotten'"], 1, 0.25)
    ]
    [fetch] = [kind for kind in about["kinds"] if kind["kind"] == "Fetch"]
    assert fetch["outcomes"] == {"expired: deadline": 1}
    assert sum(fetch["waits"]["expired"]["counts"]) == 1
    assert fetch["lateness"]["bounds"][-1] is None
    expected = {"name": "versions", "pending": 1, "isThreshold": True}
    assert thresholds.items() >= expected.items()
    assert thresholds["hottest"] == [{"key": "'a'", "value": None, "threshold": "1", "waiting": 1}]
    [wait] = thresholds["oldest"]
    assert wait == {
        "kind": "wait", "keys": ["'a'"], "moreKeys": 0, "count": 1, "waited": 1.25, "left": 48.75
    }  # fmt: skip
    assert (state["service"], state["worker"]["host"]) == ("purgatory", socket.gethostname())
    assert state["polls"] == {"open": 0, "maxOpen": 7, "isStopping": False, "endings": {}}
    assert state["relay"] is None
    [[_, lag, points]] = state["history"]
    assert lag == 0 and points == [[4, 1, 1, 0, 1], [1, 0, 0, 0, 0]]


Pair = namedtuple("Pair", "name body")
Name = type("Name", (str,), {})
BIG = bytes(range(256)) * 4096


@pytest.mark.parametrize(
    "key",
    [
        *(BIG, bytearray(BIG), frozenset([BIG])),
        (b"job", BIG, (BIG, "x" * 1_000_000)),
        *(Pair("x" * 1_000_000, BIG), Name("x" * 1_000_000), (Name("x" * 1_000_000),)),
        *(1 << 4_000_000, -(10**4000)),
    ],
    ids=lambda key: type(key).__name__,
)
def test_large_key_is_shortened_without_whole_repr(key):
    tracemalloc.start()
    try:
        text = text_of(key, shown)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0 < len(text) <= 120 and text.isprintable()
    assert peak < 20_000, "bytes were allocated for a key of a megabyte"


class Rude:
    __repr__ = raiser(ZeroDivisionError())


def test_key_is_shown_as_its_short_repr():
    for key in (b"key", b"\xff", 42, "42", ("job", b"7"), Name("a"), 2**64, Ending.GONE):
        assert text_of(key, shown) == repr(key)
    assert text_of(Pair("a", b"b"), shown) == "Pair('a', b'b')"
    assert text_of("\x1b[2J\u202e", shown) == r"'\x1b[2J\u202e'"
    assert text_of(b"x" * 121, shown) == f"b'{'x' * 55}'...b'{'x' * 55}'"
    assert text_of(1 << 4_000_000, shown) == "<int of 4000001 bits>"
    assert text_of("key", lambda key: "\x1b]0;title\x07\n") == "\ufffd]0;title\ufffd\ufffd"
    assert text_of("key", lambda key: "x" * 121) == "x" * 119 + "…"
    assert text_of("key", lambda key: key.no) == "(key_of raised AttributeError)"
    assert text_of(Rude(), shown).isprintable()


@on_virtual_time
async def test_keys_can_be_hidden():
    async with Purgatory() as jobs:
        missed: list[bool] = []
        waiting = asyncio.create_task(jobs.wait_for(lambda: missed, ["secret-1"], Fraction(1, 2)))
        jobs.try_complete_else_watch(Fetch(30), ["secret-2", "secret-3"])
        await asyncio.sleep(0.25)
        missed.append(True)
        await waiting
        page = console(jobs, polls=LongPolls(max_open=inf), key_of=lambda key: "hidden")
        answer = await ask(page, "/state")
    assert b"secret" not in answer.content and answer.content.count(b"hidden") >= 4
    state = json.loads(answer.content, parse_constant=pytest.fail)  # inf is no JSON
    assert state["purgatories"][0]["missedLast"][0]["timeout"] == 0.5
    assert state["polls"]["maxOpen"] is None


async def test_purgatory_of_another_loop_shows_counts_only():
    jobs, versions = Purgatory("elsewhere"), ThresholdPurgatory("elsewhere")

    async def look():
        return await state_of(console(jobs, versions))

    async with jobs:
        jobs.try_complete_else_watch(Fetch(30), ["key"])
        waiting = asyncio.create_task(versions.wait("key", 1))
        await asyncio.sleep(0)
        state, _ = await asyncio.to_thread(asyncio.run, look())
        waiting.cancel()
    for about in state["purgatories"]:
        assert about["isElsewhere"] and about["pending"] == 1 and "oldest" not in about


class Relay:
    """As far as the page knows it."""

    def __init__(self, *others):
        self.others = others
        self.thresholds, self.replies = ThresholdPurgatory("relay"), Purgatory("relay")

    def introduce(self, about):
        self.about = about

    def workers(self):
        return [Worker(f"id{number}", about, 2.0) for number, about in enumerate(self.others)]

    def statistics(self):
        counts = {"received": 5, "sent": 4, "resyncs": 3, "healed": 2, "epochs": 1, "watched": 6}
        return RelayStatistics(is_connected=False, since=2.0, **counts)


@on_virtual_time
async def test_the_state_has_the_statistics_of_a_relay():
    await asyncio.sleep(5)
    state, _ = await state_of(console(relay=Relay()))
    assert state["relay"] == {
        "isConnected": False, "for": 3.0, "received": 5, "sent": 4, "resyncs": 3, "healed": 2, "epochs": 1, "watched": 6
    }  # fmt: skip


@on_asyncio
async def test_relay_waits_are_shown_after_reopening(tmp_path):
    relay = RealRelay(f"file://{tmp_path}")
    page = console(relay=relay, refresh=0.1)
    for key in ("orders/7", "orders/8"):
        async with relay:
            waiting = asyncio.create_task(relay.wait(key, 0))
            while not relay.thresholds.pending:
                await asyncio.sleep(0)
            receiving = [
                asyncio.create_task(relay.receive(other, 60)) for other in (key, key, "reply/1")
            ]
            replies = [("reply", repr(key), 2), ("reply", "'reply/1'", 1)]
            shown: list[tuple[str, str, int]] = []
            while shown != [("version", repr(key), 1), *replies]:
                state, _ = await state_of(page)
                [waits] = state["purgatories"]
                shown = [(each["kind"], *each["keys"], each["count"]) for each in waits["oldest"]]
                await asyncio.sleep(0.05)
            waited = [each["waited"] for each in waits["oldest"]]
            assert waited == sorted(waited, reverse=True)
            assert (waits["name"], waits["pending"], waits["keys"]) == ("relay", 4, 3)
            assert state["history"][-1][2][0][0] == 4
            await relay.bump(key)
            await waiting
            for task in receiving:
                task.cancel()
            await asyncio.gather(*receiving, return_exceptions=True)


@on_virtual_time
async def test_worker_announces_counts_without_names():
    relay, address = Relay(), "https://example.com/purgatory/"
    async with Purgatory("private name") as jobs:
        versions = ThresholdPurgatory("private, too")
        console(jobs, versions, polls=LongPolls(), relay=relay, address=address)
        for number in range(3):
            jobs.try_complete_else_watch(Fetch(30), [f"private{number}"])
        about = relay.about()
        jobs.cancel_for_key("private1")
        assert relay.about()["pending"] == 2
    own = {"pid": os.getpid(), "host": socket.gethostname(), "began": about["began"]}
    assert about == own | {"pending": 3, "polls": 0, "address": address}


@on_virtual_time
async def test_what_other_workers_announce_is_not_trusted():
    await asyncio.sleep(5)
    names = ("pid", "host", "began", "pending", "polls", "address")
    rows = {
        (7, "db-1", 1.5, 12, 3, "http://db-1:8000/purgatory/"): None,
        ("7; rm", "\x1b[2J\u202e<b>\ud800", nan, 10**400, 1e400, "javascript:alert(1)"): (
            "\ufffd[2J\ufffd<b>\ufffd"
        ),
        (True, "x" * 3000, -1, None, None, "http://" + "x" * 3000): "x" * 119 + "…",
        ((), {}.keys, "0", 1e300, None, "https://example.com/\n"): "",
        (): "",
    }
    announced = [dict(zip(names, row, strict=False)) | {"more": "private"} for row in rows]
    state, _ = await state_of(console(relay=Relay(*announced)))
    nothing = dict.fromkeys(names) | {"host": "", "ago": 3.0}
    known = dict(zip(names, next(iter(rows)), strict=True)) | {"ago": 3.0}
    assert state["others"] == [
        known if host is None else nothing | {"host": host} for host in rows.values()
    ]
    assert (await state_of(console()))[0]["others"] is None


# -- versions


@on_virtual_time
async def test_page_with_a_version_gets_the_next():
    loop = asyncio.get_running_loop()
    async with Purgatory() as jobs:
        app = console(jobs)
        _, tag = await state_of(app)
        for number in range(1, 4):
            jobs.try_complete_else_watch(Fetch(30), ["key"])
            state, newer = await state_of(app, tag)
            assert newer != tag and loop.time() == number
            assert len(state["history"]) == 1 and state["history"][0][2] == [[number, 0, 0, 0, 0]]
            tag = newer
        await asyncio.sleep(10)
        state, _ = await state_of(app, tag)
        assert len(state["history"]) == 10  # the missed rows, and no more
        state, _ = await state_of(app, '"another-7"')
        assert len(state["history"]) == 14
        state, _ = await state_of(app, f'"another-7", {tag}')  # of all workers that it has met
        assert len(state["history"]) == 10


@on_virtual_time
async def test_history_is_kept_five_minutes_after_last_page():
    looks = []
    async with Purgatory() as jobs:
        jobs.try_complete_else_watch(Fetch(1e6), ["key"])
        app = console(jobs, key_of=lambda key: looks.append(key) or "key")
        await asyncio.sleep(100)
        assert looks == []
        await state_of(app)
        await asyncio.sleep(200)
        assert len(looks) == 2 * 201
        state, _ = await state_of(app)
        assert len(state["history"]) == 201
        await asyncio.sleep(1000)
        assert len(looks) == 2 * 501
        state, _ = await state_of(app)  # the clock runs again
        assert len(looks) == 2 * 502 and len(state["history"]) == 300


def test_without_pages_the_loop_is_empty(virtual):
    async def main():
        await state_of(console(Purgatory()))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError, match=r"at loop time 300\.2"):  # nothing can wake it any more
        virtual(main)


@on_asyncio
async def test_the_lag_of_the_loop_is_shown():
    app = console(refresh=0.1)
    _, tag = await state_of(app)
    sleep(0.3)  # noqa: ASYNC251
    late = []
    for _ in range(2):  # a version may have been on its way
        state, tag = await state_of(app, tag)
        late += [point[1] for point in state["history"]]
    assert max(late) > 0.2


@on_virtual_time
async def test_page_beyond_max_pages_is_refused():
    app = console(Purgatory(), max_pages=1000)
    _, tag = await state_of(app)
    page = (app, "/state", LOCAL | {"if-none-match": tag})
    open_pages = [asking(*page) for _ in range(1000)]
    await asyncio.sleep(0.1)
    refused = await ask(*page)
    assert refused.status == 503 and 5 <= int(refused.headers["retry-after"]) <= 9
    for request in open_pages[:10]:
        request.leave()
    await asyncio.sleep(0.1)
    another = asking(*page)
    await asyncio.gather(*(request.task for request in open_pages), another.task)
    assert [request.answer for request in open_pages[:10]] == [[]] * 10
    assert {request.status for request in [*open_pages[10:], another]} == {200}
    bodies = {id(request.answer[1]["body"]) for request in open_pages[10:]}
    assert len(bodies) == 1  # made once, for all


@on_virtual_time
async def test_standalone_page_is_answered_at_shutdown():
    app = console()
    answers = asyncio.create_task(lifespan(app, "lifespan.startup"))
    await asyncio.sleep(0)
    _, tag = await state_of(app)
    request = asking(app, "/state", LOCAL | {"if-none-match": tag})
    await asyncio.sleep(0.1)
    answers.cancel()
    complete = ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert await lifespan(app, "lifespan.startup", "lifespan.shutdown") == complete
    await request.done()
    assert request.status in (200, 503)


# -- arguments


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (["jobs"], {}, "console shows purgatories and threshold purgatories, not 'jobs'"),
        ([Versions()], {}, "give its `thresholds`"),
        ([Versions(relay=Relay())], {}, "give `relay=`, which shows their waits"),
        ([LongPolls()], {}, "give it as `polls=`"),
        ([Relay()], {}, "give it as `relay=`"),
        ([], {"authorize": True}, "authorize must be a function, not True"),
        ([], {"key_of": "sha256"}, "key_of must be a function, not 'sha256'"),
        ([], {"refresh": 0.05}, "refresh must be from 0.1 to 60 seconds, not 0.05"),
        ([], {"refresh": nan}, "refresh must be from 0.1 to 60 seconds, not nan"),
        ([], {"max_pages": 0}, "max_pages must be at least 1, not 0"),
        ([], {"address": "http://" + "ü" * 200}, "take at most 1000 bytes as JSON"),
        ([], {"address": "javascript:a"}, "begin with http:// or https://, not 'javascript:a'"),
    ],
)
def test_wrong_argument_is_refused(arguments, options, error):
    with pytest.raises((TypeError, ValueError), match=re.escape(error)):
        console(*arguments, **options)
