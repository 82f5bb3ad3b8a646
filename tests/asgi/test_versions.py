"""`purgatory.asgi.Versions`: no change is lost between two polls."""

import asyncio
import re
from typing import Any

import pytest
from asgi_requests import Request
from helpers import iterations
from loops import on_every_loop, on_virtual_time

from purgatory import ThresholdPurgatory, WrongLoop
from purgatory.asgi import LongPolls, Versions


class News:
    """A resource with versions, and a server of it."""

    def __init__(self, epoch: str = "e", **options: Any) -> None:
        self.versions: Versions[str] = Versions(epoch=epoch, **options)
        self.polls = LongPolls(signals=())
        self.app = self.polls.middleware(self.answer)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        outcome = await self.versions.changed(self.polls.poll(scope), "news")
        await outcome.send(send, b"%d" % outcome.value if outcome.is_satisfied else b"")

    def request(self, condition: str | None = None, query: bytes = b"wait=5") -> Request:
        return Request(self.app, query, {} if condition is None else {"If-None-Match": condition})


@on_virtual_time
@pytest.mark.parametrize("unchanged", [204, 304])
async def test_tag_of_each_answer_waits_for_next(unchanged):
    news, loop = News(unchanged=unchanged), asyncio.get_running_loop()
    first = await news.request().done()
    assert (first.status, first.content, first.headers["etag"]) == (200, b"0", 'W/"e-0"')
    assert news.versions.thresholds.statistics().keys == 0
    for version in range(3):
        tag = f'W/"e-{version}"'
        same = await news.request(tag).done()
        assert (same.status, same.content) == (unchanged, b"")
        expected = {"etag": tag, "preference-applied": "wait=5", "cache-control": "no-store"}
        assert same.headers == expected
        request = news.request(tag)
        await asyncio.sleep(1)
        assert news.polls.open == 1
        assert news.versions.bump("news") == version + 1
        await request.done()
        assert (request.status, request.headers["etag"]) == (200, f'W/"e-{version + 1}"')
    assert loop.time() == 18.0
    # Two updates between two polls: the tag is of the version that is read.
    request = news.request('W/"e-3"')
    await iterations(20)
    for _ in range(2):
        news.versions.bump("news")
    await request.done()
    assert (request.content, request.headers["etag"]) == (b"5", 'W/"e-5"')
    late = await news.request('W/"e-3"').done()
    assert (late.content, loop.time()) == (b"5", 18.0)


@on_virtual_time
async def test_update_after_the_deadline_is_not_unchanged():
    news = News()
    loop = asyncio.get_running_loop()
    request = news.request('"e-0"')

    def bump_once_it_has_expired() -> None:
        if news.versions.thresholds.pending:
            loop.call_soon(bump_once_it_has_expired)
        else:
            assert request.answer == []
            news.versions.bump("news")

    loop.call_at(5.0, bump_once_it_has_expired)
    await request.done()
    assert news.versions.thresholds.statistics().expired == 1
    assert (request.status, request.headers["etag"]) == (200, 'W/"e-1"')
    assert Versions[str]().epoch != Versions[str]().epoch  # so a restart is a change


@on_virtual_time
async def test_endings_other_than_these_pass_through():
    news = News(thresholds=ThresholdPurgatory(max_pending=1))
    waiting, refused = news.request('"e-0"'), news.request('"e-0"')
    assert (await refused.done()).status == 503
    malformed = await news.request(query=b"wait=x").done()
    assert malformed.status == 400
    news.polls.stop()
    assert (await waiting.done()).status == 503
    assert "etag" not in waiting.headers


TAGS = {
    1: """
        "e-1" | W/"e-1" | "x", "e-1" | "e-1" , W/"e-0" | "e-1-gzip" | W/"e-1-gzip" | "e-1-br"
        e-1 | W/e-1 | old-1, e-1 | "e-1;gzip" | "e-1--gzip" | "e-1.zst" | "x", W/"e-1-gzip", "e-0" | W/"e-1-gzip-br"
    """,
    0: """ "e-0" | "e-0-gzip" | "f-7", W/"e-0" """,
    12: """ "e-12" | "f-7-gzip", "e-12-gzip" """,
    None: """
        "old-1" | "1" | e- | "e-01" | " | "E-1" | "e--1" | "-gzip" | "old-1-gzip" | * | "e-"
        "e-gzip" | "e-٣" | "e-007"
    """,
}
"""The versions that the headers name, in the epoch `e`."""


@pytest.mark.parametrize("version", TAGS)
def test_seen_is_first_tag_of_this_epoch(version):
    versions = Versions[str](epoch="e")
    conditions = [each.strip() for each in re.split(r"[|\n]", TAGS[version].strip())]
    for condition in conditions + ["", f'"e-{"9" * 5000}"'] * (version is None):
        header = [(b"if-none-match", condition.encode())]
        seen = versions.seen({"query_string": b"", "headers": header})
        assert (condition, seen) == (condition, version)
        if condition.startswith('"e-'):
            assert versions.parse(condition.strip('"')) == versions.parse(condition) == version
    if version is not None:
        assert versions.parse(versions.tag(version)) == version
        assert versions.parse(versions.etag(version)) == version


@pytest.mark.parametrize(
    ("index", "conditions", "version"),
    [
        (b"e-4", [], 4),
        (b"e-4-br", [], 4),
        (b"f-4", [], None),
        (b"e-4", [b'"e-7"'], 7),
        (b"e-4", [b'"f-7"'], None),
        (b"", [b'"f-7"', b'"e-2"'], 2),
    ],
)
def test_index_parameter_counts_less_than_condition(index, conditions, version):
    headers = [(b"if-none-match", each) for each in conditions]
    scope = {"query_string": b"index=" + index, "headers": headers}
    assert Versions[str](epoch="e").seen(scope) == version


@on_virtual_time
@pytest.mark.parametrize(
    ("condition", "waits"), [("*", True), ('"e-0"', False), ('"e-2"', False), (None, False)]
)
async def test_poll_with_the_current_version_waits(condition, waits):
    news = News()
    news.versions.bump("news")
    status = (await news.request(condition).done()).status
    assert (status, asyncio.get_running_loop().time()) == ((304, 5.0) if waits else (200, 0.0))


@on_virtual_time
@pytest.mark.parametrize("by", ["bump", "thread"])
async def test_version_of_a_forgotten_key_answers_open_polls(by):
    news = News()
    for _ in range(3):
        news.versions.bump("news")
    waiting, again = news.request('"e-3"', b"wait=50"), news.request('"e-3"', b"wait=50")
    await asyncio.sleep(1)
    far = asyncio.create_task(news.versions.thresholds.wait("news", 7))
    again.leave()
    await again.done()
    news.versions.thresholds.forget("news")
    await asyncio.sleep(1)
    if by == "bump":
        news.versions.bump("news")
    else:
        news.versions.bump_threadsafe("news")
    await waiting.done()
    assert (waiting.status, waiting.content) == (200, b"1")
    assert (asyncio.get_running_loop().time(), waiting.headers["etag"]) == (2.0, 'W/"e-1"')
    assert not far.done() and news.versions._waits == {}
    far.cancel()


def test_option_out_of_bounds_is_refused():
    for epoch in ("a-b", "", "é", 'a"b', 7):
        with pytest.raises(
            ValueError, match="epoch must consist of letters, digits and underscores"
        ):
            Versions(epoch=epoch)
    for unchanged in (200, 304.0):
        with pytest.raises(ValueError, match=f"unchanged must be 204 or 304, not {unchanged}"):
            Versions(unchanged=unchanged)
    with pytest.raises(TypeError, match="relay must be a Relay, not 'file:///x'"):
        Versions(relay="file:///x")


# From other threads


@on_every_loop
async def test_bumps_from_threads_all_count():
    news = News()
    request = news.request('"e-0"')
    await iterations(20)
    bump = lambda: [news.versions.bump_threadsafe("news") for _ in range(2_000)]  # noqa: E731
    await asyncio.gather(*(asyncio.to_thread(bump) for _ in range(4)))
    assert (await request.done()).status == 200
    await iterations(8)  # 2,048 of them in each
    assert news.versions.version("news") == 8_000


def test_bump_before_any_loop_waits_for_one(run):
    news = News()
    news.versions.bump_threadsafe("news")

    async def main() -> str:
        return (await news.request('W/"e-0"', b"wait=0").done()).headers["etag"]

    assert run(main) == 'W/"e-1"'


async def test_wrong_thread_error_names_the_threadsafe_method():
    news = News()
    news.versions.bump("news")
    for versions, complaint in (
        (news.versions, "cannot bump 'news': bound to .* another thread; from there"),
        (Versions[str](), "no event loop is running in this thread .*"),
    ):
        with pytest.raises(WrongLoop, match=f"{complaint} call bump_threadsafe"):
            await asyncio.to_thread(versions.bump, "news")
    assert news.versions.version("news") == 1
    with pytest.raises(TypeError, match="unhashable"):
        news.versions.bump_threadsafe([])  # type: ignore[arg-type]


async def test_failed_threadsafe_bump_is_reported_alone(reports):
    versions: Versions[str] = Versions(ThresholdPurgatory(max_keys=1))
    versions.bump("one")
    for key in ("two", "one"):
        await asyncio.to_thread(versions.bump_threadsafe, key)
    await iterations(3)
    assert (versions.version("one"), versions.version("two")) == (2, 0)
    [report] = reports
    assert report["message"] == "cannot bump 'two', as another thread requested"
