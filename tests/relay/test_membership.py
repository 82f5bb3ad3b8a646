"""The list of other processes: announcements, without a store and on each kind of store."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from loops import Report, Runner
from servers import SERVERS, TIMEOUT, place

from purgatory.relay import Announcement, Relay, _membership, decode
from purgatory.relay._membership import (
    ANNOUNCE_INTERVAL,
    MAX_MEMBERS,
    MEMBER_TTL,
    MIN_REPLY_INTERVAL,
    Membership,
)
from purgatory.relay._messages import encode_announcement


def unlisted() -> Membership:
    membership = Membership()
    membership.begin()
    return membership


def listed(**about: Any) -> Membership:
    membership = unlisted()
    membership.about = lambda: about
    return membership


def pids(membership: Membership, now: float) -> list[int]:
    return [worker.about["pid"] for worker in membership.others(now)]


def test_one_request_serves_all_who_want_the_list() -> None:
    first, second, third = listed(pid=1), listed(pid=2), unlisted()
    assert first.is_due(100.0)
    request = first.announcement(calls=True)
    for membership in (
        first,
        second,
        third,
    ):  # the first has announced itself; the third does not want to be listed
        assert membership.on_announcement(request, 100.1) is (membership is second)
    reply = second.announcement(calls=False)
    assert [membership.on_announcement(reply, 100.2) for membership in (first, second, third)] == [
        False
    ] * 3
    assert not any(membership.is_due(100.0 + ANNOUNCE_INTERVAL) for membership in (second, third))
    assert second.is_due(100.1 + ANNOUNCE_INTERVAL)
    assert [pids(membership, 101.0) for membership in (first, second, third)] == [[2], [1], [1, 2]]


def test_requests_at_the_same_time_share_one_reply() -> None:
    membership = listed(pid=1)
    requests = [listed(pid=pid).announcement(calls=True) for pid in range(2, 5)]
    replies = [
        membership.on_announcement(each, 100.0 + MIN_REPLY_INTERVAL / 4 * n)
        for n, each in enumerate(requests)
    ]
    assert replies == [True, False, False]
    assert len(membership.others(100.0 + MIN_REPLY_INTERVAL)) == 3
    assert membership.on_announcement(requests[1], 100.0 + MIN_REPLY_INTERVAL)


def test_silent_process_is_delisted_and_order_kept() -> None:
    membership, others = unlisted(), [listed(pid=pid) for pid in range(3)]
    for now, present in ((0.0, others), (5.0, others[::2])):
        for other in present:
            membership.on_announcement(other.announcement(calls=False), now)
    assert pids(membership, MEMBER_TTL - 0.1) == [0, 1, 2]
    assert pids(membership, MEMBER_TTL) == [0, 2]
    assert pids(membership, 5.0 + MEMBER_TTL) == []


def test_listing_is_capped_at_one_page() -> None:
    membership, first = unlisted(), listed(pid=0)
    membership.on_announcement(first.announcement(calls=False), 0.0)
    for pid in range(1, MAX_MEMBERS + 10):
        membership.on_announcement(listed(pid=pid).announcement(calls=False), 1.0)
    membership.on_announcement(
        first.announcement(calls=False), 2.0
    )  # one that is listed announces itself again
    assert len(membership.others(2.0)) == MAX_MEMBERS
    membership.on_announcement(
        listed(pid=-1).announcement(calls=False), 1.0 + MEMBER_TTL
    )  # the others are silent
    assert pids(membership, 1.0 + MEMBER_TTL) == [0, -1]


@pytest.mark.parametrize("about", [None, {}, {"pid": 7, "host": "Schlüssel \0 🦉"}])
def test_an_announcement_is_decoded_as_it_was_encoded(about: dict[str, Any] | None) -> None:
    announcement = Announcement("a1", True, about)
    assert decode(encode_announcement(announcement)) == announcement


def test_an_announcement_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 4000 bytes as JSON, got 5"):
        encode_announcement(Announcement("a1", False, {"text": "x" * 5_000}))


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        b'{"id": 1, "calls": true, "about": {}}',
        b'{"id": "a", "calls": 1, "about": {}}',
        b'{"id": "a", "calls": true, "about": []}',
        b'{"id": "a", "about": {}}',
        encode_announcement(Announcement("a", True, {"text": "x" * 3_900})).replace(
            b"xxx", b"x" * 100
        ),
        b'["e", 0, 1, {"a": "1"}]',
        b'["e", 0, 1, {"a": 1, "b": true}]',
        b'["e", 0, 1, {"a": 1e400}]',
        b"9" * 5_000,
        b"[" * 100_000,
    ],
)
def test_a_payload_that_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="not a message of a relay"):
        decode(payload)


# -- on stores


@pytest.fixture(params=["file", *SERVERS.values()])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with place(request.param, tmp_path) as url:
        yield url


@asynccontextmanager
async def relays(url: str, count: int) -> AsyncIterator[list[Relay]]:
    opened = [Relay(url, timeout=TIMEOUT) for _ in range(count)]
    try:
        for relay in opened:
            await relay.__aenter__()
        yield opened
    finally:
        for relay in opened:
            await relay.aclose()


async def listing(relay: Relay, *pids: int) -> None:
    """Waits until exactly the processes `pids` are listed."""
    async with asyncio.timeout(TIMEOUT):
        while sorted(worker.about["pid"] for worker in relay.workers()) != sorted(pids):
            await asyncio.sleep(0.02)


def test_announced_process_is_listed_until_it_leaves(
    run: Runner, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_membership, "ANNOUNCE_INTERVAL", 0.2)
    monkeypatch.setattr(_membership, "MEMBER_TTL", 2.0)

    async def main() -> None:
        async with relays(url, 3) as [first, second, silent]:
            first.introduce(lambda: {"pid": 1})
            second.introduce(lambda: {"pid": 2})
            await listing(silent, 1, 2)
            await listing(first, 2)
            await listing(second, 1)
            second.introduce(lambda: {"pid": 22})
            await listing(first, 22)
            await second.aclose()
            assert second.workers() == []
            await listing(first)

    run(main)


def test_while_nobody_wants_the_list_nothing_is_sent(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_membership, "ANNOUNCE_INTERVAL", 60.0)

    async def main() -> None:
        async with relays(f"file://{tmp_path}", 2) as [first, second]:
            sent = []
            for relay in (first, second):
                send = relay._store.send
                relay._store.send = lambda payload, send=send: (
                    sent.append(decode(payload)) or send(payload)
                )  # type: ignore[assignment,misc]
            first.introduce(lambda: {"pid": 1})
            second.introduce(lambda: {"pid": 2})
            await asyncio.sleep(0.1)
            assert not [each for each in sent if isinstance(each, Announcement)]
            for _ in range(100):  # a hundred pages
                first.workers()
            await listing(second, 1)
            assert (
                len(
                    [
                        each
                        for each in sent
                        if isinstance(each, Announcement)
                        and each.calls
                        and each.about == {"pid": 1}
                    ]
                )
                == 1
            )

    run(main)


@pytest.mark.parametrize("unfit", [ZeroDivisionError("no"), object(), "x" * 5_000])
def test_failed_announcement_is_reported_and_harmless(
    run: Runner, tmp_path: Path, reports: list[Report], unfit: object
) -> None:
    def about() -> dict[str, Any]:
        if isinstance(unfit, Exception):
            raise unfit
        return {"pid": unfit}

    async def main() -> None:
        async with relays(f"file://{tmp_path}", 2) as [good, bad]:
            good.introduce(lambda: {"pid": 1})
            bad.introduce(about)
            assert good.workers() == []
            await listing(bad, 1)
            assert {report["message"] for report in reports} == {
                f"file://{tmp_path}: cannot announce this process to the others"
            }

    run(main)


def test_processes_forked_with_a_relay_list_each_other(run: Runner, tmp_path: Path) -> None:
    async def main() -> None:
        relay = Relay(f"file://{tmp_path}")
        relay.introduce(lambda: {"pid": 1})
        child = copy(relay._membership)
        async with relay:
            child.begin()
            assert child.on_announcement(relay._membership.announcement(calls=True), 0.0)

    run(main)


def test_a_relay_that_is_not_open_lists_nobody(run: Runner, tmp_path: Path) -> None:
    async def main() -> None:
        relay = Relay(f"file://{tmp_path}")
        relay.introduce(lambda: {"pid": 1})
        assert relay.workers() == []
        async with relay:
            assert relay.workers() == []
        assert relay.workers() == []

    run(main)
