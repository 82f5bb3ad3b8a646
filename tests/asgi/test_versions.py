"""`purgatory.asgi.Versions`: no change is lost between two polls."""

import asyncio
import threading
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


async def test_poll_without_tag_is_answered_at_once():
    news = News()
    request = await news.request().done()
    assert (request.status, request.content, request.headers["etag"]) == (200, b"0", 'W/"e-0"')
    assert news.versions.bump("news") == 1
    request = await news.request().done()
    assert (request.status, request.content, request.headers["etag"]) == (200, b"1", 'W/"e-1"')


@on_virtual_time
async def test_current_tag_waits_for_the_next_version():
    news = News()
    for version in range(3):
        request = news.request(f'"e-{version}"')
        await asyncio.sleep(1)
        assert news.polls.open == 1
        news.versions.bump("news")
        await request.done()
        assert (request.status, request.headers["etag"]) == (200, f'W/"e-{version + 1}"')
    assert asyncio.get_running_loop().time() == 3.0


@on_virtual_time
async def test_update_between_polls_is_answered_at_once():
    news = News()
    news.versions.bump("news")
    first = await news.request().done()
    news.versions.bump("news")
    news.versions.bump("news")
    second = await news.request(first.headers["etag"]).done()
    assert (second.status, second.content, second.headers["etag"]) == (200, b"3", 'W/"e-3"')
    assert asyncio.get_running_loop().time() == 0.0


@on_virtual_time
@pytest.mark.parametrize("unchanged", [204, 304])
async def test_unchanged_status_has_the_current_tag(
    unchanged,
):
    news = News(unchanged=unchanged)
    for version in (0, 1):
        request = await news.request(f'"e-{version}"').done()
        assert (request.status, request.content) == (unchanged, b"")
        assert request.headers == {"etag": f'W/"e-{version}"', "preference-applied": "wait=5"}
        news.versions.bump("news")
    assert asyncio.get_running_loop().time() == 10.0


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


async def test_tag_names_the_version_at_reading():
    news = News()
    request = news.request('"e-0"')
    await iterations(20)
    news.versions.bump("news")
    news.versions.bump("news")
    await request.done()
    assert (request.content, request.headers["etag"]) == (b"2", 'W/"e-2"')


@on_virtual_time
@pytest.mark.parametrize(
    "condition",
    [
        '"e-1"',
        'W/"e-1"',
        '"x", "e-1"',
        ' "e-1" , W/"e-0"',
        "*",
        '"e-1-gzip"',
        'W/"e-1-gzip"',
        '"e-1-br"',
        '"e-1;gzip"',
        '"e-1--gzip"',
        '"e-1.zst"',
        '"x", W/"e-1-gzip", "e-0"',
        'W/"e-1-gzip-br"',
    ],
)
async def test_a_condition_that_names_the_present_version_waits(condition):
    news = News()
    news.versions.bump("news")
    assert (await news.request(condition).done()).status == 304
    assert asyncio.get_running_loop().time() == 5.0


@on_virtual_time
@pytest.mark.parametrize(
    "condition",
    [
        '"e-0"',
        '"e-2"',
        '"old-1"',
        '"1"',
        "e-1",
        '"e-01"',
        '"',
        "",
        '"E-1"',
        '"e-10"',
        '"e-0-gzip"',
        '"e--1"',
        '"-gzip"',
        '"old-1-gzip"',
    ],
)
async def test_any_other_condition_is_answered_at_once(condition):
    news = News()
    news.versions.bump("news")
    assert (await news.request(condition).done()).status == 200
    assert asyncio.get_running_loop().time() == 0.0


@on_virtual_time
async def test_tag_of_earlier_server_is_answered_at_once():
    before, after = (Versions[str]().epoch for _ in range(2))
    assert before != after
    earlier, later = News(before), News(after)
    for news in (earlier, later):
        news.versions.bump("news")
    tag = (await earlier.request().done()).headers["etag"]
    assert (await later.request(tag).done()).status == 200
    assert asyncio.get_running_loop().time() == 0.0


@on_virtual_time
async def test_index_parameter_equals_if_none_match():
    news = News()
    news.versions.bump("news")
    assert (await news.request(query=b"wait=5&index=e-0").done()).status == 200
    assert (await news.request(query=b"wait=5&index=nonsense").done()).status == 200
    assert asyncio.get_running_loop().time() == 0.0
    assert (await news.request(query=b"wait=5&index=e-1").done()).status == 304
    assert (
        await news.request('"e-0"', b"wait=5&index=e-1").done()
    ).status == 200  # the header counts more
    assert asyncio.get_running_loop().time() == 5.0


@on_virtual_time
async def test_polling_makes_no_keys():
    news = News()
    await news.request().done()
    await news.request('"e-0"').done()
    assert news.versions.thresholds.statistics().keys == 0


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


@pytest.mark.parametrize(
    ("tag", "version"),
    [
        ("e-0", 0),
        ("e-41", 41),
        ("e--1", None),
        ("", None),
        ("f-1", None),
        ("e-٣", None),
        ("e-" + "9" * 5000, None),
        ("e-41-gzip", 41),
        ("e-", None),
        ("e-gzip", None),
        ('"e-41"', 41),
        ('W/"e-41;gzip"', 41),
        ("e-007", None),
    ],
)
def test_a_tag_of_this_epoch_is_read_back(tag, version):
    assert Versions[str](epoch="e").parse(tag) == version


@pytest.mark.parametrize(
    ("query", "headers", "version"),
    [
        (b"", [], None),
        (b"index=e-4", [], 4),
        (b"index=f-4", [], None),
        (b"index=e-4", [(b"if-none-match", b'"e-7"')], 7),
        (b"index=e-4", [(b"if-none-match", b'"f-7"')], None),
        (b"", [(b"if-none-match", b'"f-7", W/"e-9"')], 9),
        (b"", [(b"if-none-match", b'"f-7"'), (b"if-none-match", b'"e-2"')], 2),
        (b"", [(b"if-none-match", b"*")], None),
        (b"", [(b"if-none-match", b'"f-7-gzip", "e-9-gzip"')], 9),
        (b"index=e-4-br", [], 4),
    ],
)
def test_seen_is_first_tag_of_this_epoch(query, headers, version):
    assert Versions[str](epoch="e").seen({"query_string": query, "headers": headers}) == version


def test_a_version_can_be_parsed_from_its_tag():
    versions: Versions[str] = Versions()
    assert versions.parse(versions.tag(41)) == versions.parse(versions.etag(41)) == 41


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"epoch": "a-b"}, "epoch must consist of letters, digits and underscores, not 'a-b'"),
        ({"epoch": ""}, "epoch must"),
        ({"epoch": "é"}, "epoch must"),
        ({"epoch": 'a"b'}, "epoch must"),
        ({"epoch": 7}, "epoch must consist of letters, digits and underscores, not 7"),
        ({"unchanged": 200}, "unchanged must be 204 or 304, not 200"),
        ({"unchanged": 304.0}, "unchanged must be 204 or 304, not 304.0"),
    ],
)
def test_option_out_of_bounds_is_refused_by_name(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        Versions(**options)


# From other threads


@on_every_loop
async def test_bumps_from_threads_answer_waiters_and_all_count():
    news = News()
    request = news.request('"e-0"')
    await iterations(20)
    for _ in range(3):
        await asyncio.to_thread(news.versions.bump_threadsafe, "news")
    assert (await request.done()).status == 200
    await iterations(1)  # from CPython 3.14 on `to_thread` may return before the loop has received
    assert news.versions.version("news") == 3
    assert (await news.request('W/"e-2"').done()).headers["etag"] == 'W/"e-3"'


async def test_all_bumps_before_the_loop_wakes_count():
    news = News()
    assert news.versions.version("news") == 0
    threads = [
        threading.Thread(
            target=lambda: [news.versions.bump_threadsafe("news") for _ in range(2_000)]
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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
    with pytest.raises(
        WrongLoop,
        match=r"cannot bump 'news': bound to .* another thread; from there call bump_threadsafe",
    ):
        await asyncio.to_thread(news.versions.bump, "news")
    assert news.versions.version("news") == 1
    with pytest.raises(
        WrongLoop, match=r"no event loop is running in this thread .* call bump_threadsafe"
    ):
        await asyncio.to_thread(Versions().bump, "news")
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


def test_address_in_place_of_relay_is_refused():
    with pytest.raises(TypeError, match="relay must be a Relay, not 'file:///x'"):
        Versions(relay="file:///x")
