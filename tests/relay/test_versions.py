"""`Versions(relay=...)`: ETags that hold in every worker, and `event_source` over them."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import until
from relay_waits import knows, pair, set_timeout
from servers import TIMEOUT

sys.path.insert(0, str(Path(__file__).parent.parent))
from asgi_requests import Request

from purgatory import ThresholdPurgatory
from purgatory.asgi import Ending, LongPolls, Versions
from purgatory.asgi.sse import event_source
from purgatory.relay import Relay


class Worker:
    """One of several workers that serve the same resource."""

    def __init__(self, relay: Relay, polls: LongPolls | None = None) -> None:
        self.versions: Versions[str] = Versions(relay=relay)
        self.events: list[tuple[int, str]] = []
        self.polls = polls or LongPolls(signals=(), retry_after=7, retry_jitter=0)
        self.app = self.polls.middleware(self.answer)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        poll = self.polls.poll(scope)
        if scope["path"] == "/events":

            def read(seen: int) -> list[tuple[int, str]]:
                return [row for row in self.events if row[0] > seen]

            await event_source(poll, self.versions, "news", read)(scope, receive, send)
            return
        outcome = await self.versions.changed(poll, "news")
        await outcome.send(
            send, b"%d" % outcome.value if outcome.is_satisfied else outcome.reason.encode()
        )

    def ask(self, condition: str | None = None, query: bytes = b"wait=60") -> Request:
        return Request(self.app, query, {} if condition is None else {"If-None-Match": condition})


async def test_tag_holds_across_workers_and_restarts(tmp_path):
    url = f"file://{tmp_path}/app"
    async with pair(url) as (first, second):
        request = await Worker(first).ask().done()
        assert (request.status, request.content) == (200, b"0")
        other = Worker(second)
        waiting = other.ask(request.headers["etag"])
        await until(lambda: other.polls.open == 1 and second.statistics().watched == 1)
        await first.bump("news")
        await waiting.done()
        assert (waiting.status, waiting.content) == (200, b"1")
        assert waiting.headers["etag"] == f'W/"{first.epoch}-1"'
    async with Relay(url, timeout=TIMEOUT) as third:
        request = await Worker(third).ask(waiting.headers["etag"], b"wait=0.1").done()
        assert (request.status, request.headers["etag"]) == (304, waiting.headers["etag"])
        await third.bump("news")
        request = await Worker(third).ask(waiting.headers["etag"]).done()
        assert (request.status, request.content) == (200, b"2")


BEYOND = ["1000", "9" * 16, "1" + "0" * 18, "9" * 19, "9" * 5000]
"""Versions that no store gives."""


@pytest.mark.parametrize(
    ("condition", "query", "status"),
    [
        (None, "wait=60", 200),
        ('"other-7"', "wait=60", 200),
        *((f'"{{epoch}}-{number}"', "wait=60", 200) for number in BEYOND),
        *((None, f"wait=60&index={{epoch}}-{number}", 200) for number in BEYOND),
        ("*", "wait=0.1", 304),
        ('W/"{epoch}-3"', "wait=0", 304),
        ('W/"{epoch}-2"', "wait=0", 200),
        ('W/"{epoch}-2"', "", 200),  # this one waits for no time by default
    ],
)
async def test_poll_is_answered_by_what_the_store_has(tmp_path, condition, query, status):
    url = f"file://{tmp_path}"
    async with pair(url) as (relay, other):
        worker = Worker(relay, LongPolls(signals=(), default_wait=0.0))
        await other.advance("news", 3)
        tag = condition and condition.format(epoch=relay.epoch)
        request = await worker.ask(tag, query.format(epoch=relay.epoch).encode()).done()
        assert (request.status, request.content) == (status, b"3" if status == 200 else b"")
        assert request.headers["etag"] == f'W/"{relay.epoch}-3"'


@pytest.mark.parametrize("number", [BEYOND[0], BEYOND[-1]])
async def test_events_after_an_unknown_id_are_all(tmp_path, number):
    async with Relay(f"file://{tmp_path}", timeout=TIMEOUT) as relay:
        await relay.advance("news", 3)
        worker = Worker(relay)
        worker.events.append((3, "event"))
        headers = {"Last-Event-ID": f"{relay.epoch}-{number}"}
        request = Request(worker.app, b"", headers, path="/events")
        await until(lambda: b"data: event" in request.content)
        worker.polls.stop()
        await request.done()


async def test_unavailable_store_keeps_polls_and_refuses_new_ones(tmp_path):
    folder = tmp_path / "app"
    async with Relay(f"file://{folder}", resync=0.2, timeout=TIMEOUT) as relay:
        worker, epoch = Worker(relay), relay.epoch
        waiting = worker.ask(f'"{epoch}-0"', b"wait=60")
        await knows(relay, "news")
        await set_timeout(relay, 0.5)
        shutil.rmtree(folder)
        folder.write_text("")
        request = await worker.ask().done()
        assert (request.status, request.headers["retry-after"]) == (503, "7")
        assert request.content == b"cannot read 'news': the store is unreachable"
        assert worker.polls.endings[Ending.REFUSED] == 1
        folder.unlink()
        folder.mkdir()
        await waiting.done()
        assert (waiting.status, waiting.content) == (200, b"0")
        assert waiting.headers["etag"] == f'W/"{relay.epoch}-0"' != f'W/"{epoch}-0"'


async def test_events_are_sent_for_versions_of_the_relay(tmp_path):
    async with Relay(f"file://{tmp_path}", timeout=TIMEOUT) as relay:
        worker = Worker(relay)
        request = Request(worker.app, b"", {}, path="/events")
        await until(lambda: bool(request.answer and relay.statistics().watched))
        for number in (1, 2, 3):
            if number < 3:  # a version need not bring anything
                worker.events.append((number, f"event {number}"))
            await relay.bump("news")
            await until(
                lambda number=number: request.content.count(b"data: event") >= min(number, 2)
            )
        worker.polls.stop()
        await request.done()
        assert request.content.count(b"data: event") == 2
        assert f"id: {relay.epoch}-2".encode() in request.content


def test_a_relay_brings_its_own_thresholds_and_epoch(tmp_path):
    relay = Relay(f"file://{tmp_path}")
    for options in ({"epoch": "e"}, {"thresholds": ThresholdPurgatory()}):
        with pytest.raises(TypeError, match="give neither with it"):
            Versions(relay=relay, **options)
    with pytest.raises(RuntimeError, match="cannot bump 'news' here"):
        Versions(relay=relay).bump("news")
    with pytest.raises(
        RuntimeError, match=r"cannot get the version of 'news' here: .* `await relay.version"
    ):
        Versions(relay=relay).version("news")
