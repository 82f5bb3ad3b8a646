"""Who else is there: the calls of processes that are to be known, on real stores and without any."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from loops import Report, Runner
from servers import place

from purgatory.relay import Card, Relay, _roll, decode
from purgatory.relay._messages import encode_card
from purgatory.relay._roll import EVERY, FORGOTTEN, MOST, PAUSE, Roll


def begun() -> Roll:
    roll = Roll()
    roll.begin()
    return roll


def introduced(**about: Any) -> Roll:
    roll = begun()
    roll.about = lambda: about
    return roll


def test_one_call_serves_all_who_ask() -> None:
    first, second, third = introduced(pid=1), introduced(pid=2), begun()
    assert first.is_due(100.0)
    call = first.card(calls=True)
    for roll in (first, second, third):
        assert roll.heard(call, 100.1) is (roll is second)  # the one who calls need not answer, nor who is not to be known
    answer = second.card(calls=False)
    assert [roll.heard(answer, 100.2) for roll in (first, second, third)] == [False] * 3
    assert not any(roll.is_due(100.0 + EVERY) for roll in (second, third))
    assert second.is_due(100.1 + EVERY)
    assert [[each.about for each in roll.others(101.0)] for roll in (first, second, third)] == [
        [{"pid": 2}],
        [{"pid": 1}],
        [{"pid": 1}, {"pid": 2}],
    ]


def test_those_who_call_at_once_are_answered_once() -> None:
    roll = introduced(pid=1)
    calls = [introduced(pid=pid).card(calls=True) for pid in range(2, 5)]
    assert [roll.heard(call, 100.0 + PAUSE / 4 * number) for number, call in enumerate(calls)] == [True, False, False]
    assert len(roll.others(100.0 + PAUSE)) == 3
    assert roll.heard(calls[1], 100.0 + PAUSE)


def test_who_does_not_answer_is_forgotten_and_who_does_keeps_his_place() -> None:
    roll, others = begun(), [introduced(pid=pid) for pid in range(3)]
    for now, present in ((0.0, others), (5.0, others[::2])):
        for other in present:
            roll.heard(other.card(calls=False), now)
    assert [each.about["pid"] for each in roll.others(FORGOTTEN - 0.1)] == [0, 1, 2]
    assert [each.about["pid"] for each in roll.others(FORGOTTEN)] == [0, 2]
    assert roll.others(5.0 + FORGOTTEN) == []


def test_no_more_are_remembered_than_a_page_can_show() -> None:
    roll, first = begun(), introduced(pid=0)
    roll.heard(first.card(calls=False), 0.0)
    for pid in range(1, MOST + 10):
        roll.heard(introduced(pid=pid).card(calls=False), 1.0)
    roll.heard(first.card(calls=False), 2.0)  # one that is known is heard of again
    assert len(roll.others(2.0)) == MOST
    roll.heard(introduced(pid=-1).card(calls=False), 1.0 + FORGOTTEN)  # there is room again
    assert [each.about["pid"] for each in roll.others(1.0 + FORGOTTEN)] == [0, -1]


@pytest.mark.parametrize("about", [None, {}, {"pid": 7, "host": "Schlüssel \0 🦉"}])
def test_a_card_is_read_as_it_was_sent(about: dict[str, Any] | None) -> None:
    card = Card("a1", True, about)
    assert decode(encode_card(card)) == card


def test_a_card_that_is_no_message_is_not_sent() -> None:
    with pytest.raises(ValueError, match="at most 4000 bytes as JSON, not 5"):
        encode_card(Card("a1", False, {"text": "x" * 5_000}))


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        b'{"id": 1, "calls": true, "about": {}}',
        b'{"id": "a", "calls": 1, "about": {}}',
        b'{"id": "a", "calls": true, "about": []}',
        b'{"id": "a", "about": {}}',
        encode_card(Card("a", True, {"text": "x" * 3_900})).replace(b"xxx", b"x" * 100),
        b'["e", 0, 1, {"a": "1"}]',
        b'["e", 0, 1, {"a": 1, "b": true}]',
        b'["e", 0, 1, {"a": 1e400}]',
        b"9" * 5_000,
        b"[" * 100_000,
    ],
)
def test_what_is_no_card_and_no_news_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="neither news nor a card nor a probe"):
        decode(payload)


# -- on stores


@pytest.fixture(params=["file", "redis", "cluster", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with place(request.param, tmp_path) as url:
        yield url


@asynccontextmanager
async def relays(url: str, count: int) -> AsyncIterator[list[Relay]]:
    opened = [Relay(url) for _ in range(count)]
    try:
        for relay in opened:
            await relay.__aenter__()
        yield opened
    finally:
        for relay in opened:
            await relay.aclose()


async def heard(relay: Relay, *pids: int) -> None:
    """Asks until these are there, and no others."""
    async with asyncio.timeout(60):
        while sorted(each.about["pid"] for each in relay.workers()) != sorted(pids):
            await asyncio.sleep(0.02)


def test_who_has_introduced_itself_is_known_to_all_others_until_it_is_gone(
    run: Runner, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_roll, "EVERY", 0.2)
    monkeypatch.setattr(_roll, "FORGOTTEN", 2.0)

    async def main() -> None:
        async with relays(url, 3) as [first, second, silent]:
            first.introduce(lambda: {"pid": 1})
            second.introduce(lambda: {"pid": 2})
            await heard(silent, 1, 2)
            await heard(first, 2)
            await heard(second, 1)
            second.introduce(lambda: {"pid": 22})
            await heard(first, 22)
            await second.aclose()
            assert second.workers() == []
            await heard(first)

    run(main)


def test_while_nobody_asks_nothing_is_sent(run: Runner, tmp_path: Path) -> None:
    async def main() -> None:
        async with relays(f"file://{tmp_path}", 2) as [first, second]:
            sent = []
            for relay in (first, second):
                send = relay._store.send
                relay._store.send = lambda payload, send=send: sent.append(decode(payload)) or send(payload)  # type: ignore[assignment,misc]
            first.introduce(lambda: {"pid": 1})
            second.introduce(lambda: {"pid": 2})
            await asyncio.sleep(0.1)
            assert not [each for each in sent if isinstance(each, Card)]
            for _ in range(100):  # a hundred pages
                first.workers()
            await heard(second, 1)
            assert len([each for each in sent if isinstance(each, Card) and each.calls and each.about == {"pid": 1}]) == 1

    run(main)


@pytest.mark.parametrize("unfit", [ZeroDivisionError("no"), object(), "x" * 5_000])
def test_what_cannot_be_told_of_a_process_is_reported_and_harms_nobody(
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
            await heard(bad, 1)
            assert {report["message"] for report in reports} == {
                f"file://{tmp_path}: this process cannot be introduced to the others"
            }

    run(main)


def test_processes_that_were_forked_after_their_relay_was_made_know_each_other(run: Runner, tmp_path: Path) -> None:
    async def main() -> None:
        relay = Relay(f"file://{tmp_path}")
        relay.introduce(lambda: {"pid": 1})
        child = copy(relay._roll)
        async with relay:
            child.begin()
            assert child.heard(relay._roll.card(calls=True), 0.0)

    run(main)


def test_of_a_relay_that_is_not_open_nobody_is_known(run: Runner, tmp_path: Path) -> None:
    async def main() -> None:
        relay = Relay(f"file://{tmp_path}")
        relay.introduce(lambda: {"pid": 1})
        assert relay.workers() == []
        async with relay:
            assert relay.workers() == []
        assert relay.workers() == []

    run(main)
