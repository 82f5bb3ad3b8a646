"""What is logged under `purgatory`, when, how often, and that nothing else is."""

import asyncio
import logging
import sys
import uuid

import pytest
from helpers import Probe
from loops import on_virtual_time

from purgatory import Purgatory, ThresholdPurgatory, _logs


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The time that limits the rates, which stands still unless it is set."""
    now = [0.0]
    for name in ("missed_triggers", "similar_keys"):
        monkeypatch.setattr(_logs, name, _logs.RateLimit(lambda: now[0]))
    return now


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "purgatory")
    return lambda: [(record.name, record.levelname, record.getMessage()) for record in caplog.records]


async def miss(purgatory, keys, **limit):
    operation = Probe(**limit)
    purgatory.try_complete_else_watch(operation, keys)
    operation.ready = True
    await asyncio.sleep(31)


@on_virtual_time
@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("keys", [["tea"], ["tea", ("a", 7)], [("a", 7)]])
async def test_a_missed_trigger_is_a_warning_with_all_that_it_takes_to_find_it(keys, observed, lines):
    class Observer:
        def operation_ended(self, *_): ...

        key_checked = operation_ended

    async with Purgatory("orders", observer=Observer() if observed else None) as orders:
        orders.try_complete_else_watch(Probe(), keys)  # so that the key's list is more than one
        await miss(orders, keys, timeout=30)
    [(name, level, message)] = lines()
    assert (name, level) == ("purgatory", "WARNING")
    shown = ", ".join(map(repr, keys))
    assert message.startswith(f"orders: missed trigger: Probe on {shown} completed only at its deadline, after 30.0")
    assert "check_and_complete" in message


@on_virtual_time
async def test_of_many_missed_triggers_one_in_ten_seconds_is_logged_for_each_purgatory_and_says_how_many_were_not(clock, lines):
    loop = asyncio.get_running_loop()
    async with Purgatory("orders") as orders, Purgatory("jobs") as jobs:
        for _ in range(5):
            await miss(orders, ["tea"], deadline=loop.time() + 30)
        await miss(jobs, ["tea"], timeout=30)
        clock[0] = 9.9
        await miss(orders, ["tea"], timeout=30)
        clock[0] = 10.0
        await miss(orders, ["tea"], timeout=30)
        clock[0] = 20.0
        await miss(orders, ["tea"], timeout=30)
    first, other, second, third = [message for _, _, message in lines()]
    assert first.startswith("orders") and other.startswith("jobs")
    assert "after" not in first and "more since" not in first + other + third
    assert second.endswith("(5 more since the last such message)")


@on_virtual_time
async def test_what_ends_as_it_should_is_not_logged(lines):
    def complete(operation):
        operation.ready = True
        orders.check_and_complete("tea")

    async with Purgatory("orders") as orders:
        for end in (Probe.cancel, Probe.force_complete, complete, lambda _: None):
            operation = Probe(5)
            orders.try_complete_else_watch(operation, ["tea"])
            end(operation)
            await asyncio.sleep(6)
        orders.check_and_complete("nobody's")
        orders.try_complete_else_watch(Probe(), ["tea"])
    assert lines() == []


SIMILAR_KEYS = [
    (42, "42", "nobody waits for 42 (int), which was checked, but somebody for '42' (str)"),
    ("42", 42, "nobody waits for '42' (str), which was checked, but somebody for 42 (int)"),
    ("0.5", 0.5, "'0.5' (str)"),
    (b"tea", "tea", "b'tea' (bytes)"),
    ("tea", b"tea", "but somebody for b'tea' (bytes)"),
    (uuid.UUID(int=7), str(uuid.UUID(int=7)), "(UUID)"),
    (str(uuid.UUID(int=7)), uuid.UUID(int=7), "(UUID)"),
]


@pytest.mark.parametrize(("checked", "watched", "words"), SIMILAR_KEYS)
@pytest.mark.parametrize(("debug", "asked_for"), [(True, ""), (False, ""), (False, "1")])
def test_in_debug_mode_a_key_of_another_type_than_the_watched_one_is_hinted_at(
    checked, watched, words, debug, asked_for, lines, monkeypatch
):
    monkeypatch.setenv("PYTHONASYNCIODEBUG", asked_for)

    async def main():
        async with Purgatory("orders") as orders:
            orders.try_complete_else_watch(Probe(), [watched])
            assert orders.check_and_complete(checked) == 0
            assert orders.check_and_complete(checked) == 0
            orders.check_and_complete(watched)

    asyncio.run(main(), debug=debug)  # as uvicorn does, whatever Python was asked for
    told = [message for name, _, message in lines() if name == "purgatory"]
    assert len(told) == (debug or bool(asked_for) or sys.flags.dev_mode)
    assert all(message.startswith("orders: nobody waits for ") and words in message for message in told)


def test_a_key_like_no_other_is_no_reason_for_a_hint(lines):
    class Strange:
        def __str__(self):
            raise ZeroDivisionError

    async def main():
        async with Purgatory("orders") as orders:
            orders.try_complete_else_watch(Probe(), ["tea"])
            for key in (Strange(), "x", "", b"\xff", None, ("tea",), 7, "١٢"):
                assert orders.check_and_complete(key) == 0

    asyncio.run(main(), debug=True)
    assert [line for line in lines() if line[0] == "purgatory"] == []


@on_virtual_time
async def test_a_drain_that_cancels_the_rest_says_how_many(lines):
    for closable in (Purgatory("orders"), ThresholdPurgatory("versions")):
        waiting = []
        for key in ("tea", "milk"):
            wait = closable.wait(Probe(5), [key]) if isinstance(closable, Purgatory) else closable.wait(key, 1, 5)
            waiting.append(asyncio.create_task(wait))
        endless = closable.wait(Probe(), ["a"]) if isinstance(closable, Purgatory) else closable.wait("a", 1)
        waiting.append(asyncio.create_task(endless))
        await asyncio.sleep(0)
        await closable.aclose(drain=10)
        await asyncio.gather(*waiting, return_exceptions=True)
    message = "{}: the drain of 10.0 s was over before all had ended, and the rest was cancelled: 1"
    assert lines() == [("purgatory", "WARNING", message.format(name)) for name in ("orders", "versions")]


def test_a_thousand_names_are_remembered_and_then_forgotten():
    limit = _logs.RateLimit(lambda: 0.0)
    assert [limit.allow(str(name)) for name in range(_logs.MAX_NAMES)] == [True] * _logs.MAX_NAMES
    assert not limit.allow("0") and limit.allow("another")
    assert len(limit._next) == 1
