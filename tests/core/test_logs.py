"""Log records under `purgatory`: their text, their rate, and no others."""

import asyncio
import logging

import pytest
from helpers import Probe
from loops import on_virtual_time

from purgatory import IdleTracker, Purgatory, ThresholdPurgatory
from purgatory._core import logs as _logs


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The clock of the rate limits, which moves only when it is set."""
    now = [0.0]
    monkeypatch.setattr(_logs, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "purgatory")
    return lambda: [
        (record.name, record.levelname, record.getMessage()) for record in caplog.records
    ]


async def miss(purgatory, keys, **limit):
    operation = Probe(**limit)
    purgatory.try_complete_else_watch(operation, keys)
    operation.ready = True
    await asyncio.sleep(31)


@on_virtual_time
@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("keys", [["tea"], ["tea", ("a", 7)], [("a", 7)]])
async def test_missed_trigger_warning_names_all_details(keys, observed, lines):
    class Observer:
        def operation_ended(self, *_): ...

        key_checked = operation_ended

    async with Purgatory("orders", observer=Observer() if observed else None) as orders:
        orders.try_complete_else_watch(Probe(), keys)  # the list of the key then has several chunks
        await miss(orders, keys, timeout=30)
    [(name, level, message)] = lines()
    assert (name, level) == ("purgatory", "WARNING")
    shown = ", ".join(map(repr, keys))
    assert message.startswith(
        f"orders: missed trigger: Probe on {shown} completed only at its deadline, after 30.0"
    )
    assert "check_and_complete" in message


@on_virtual_time
@pytest.mark.parametrize("kind", [Purgatory, ThresholdPurgatory, IdleTracker])
async def test_purgatory_names_in_messages_are_printable(kind):
    told = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: told.append(context["message"]))

    class Observer:
        def operation_ended(self, _ended):
            raise ZeroDivisionError

        def key_checked(self, *_): ...

    name = "jobs\nCRITICAL forged"
    if kind is IdleTracker:
        idle = kind(1, lambda _id: None, name=name, observer=Observer())
        idle.touch("connection")
    else:
        async with kind(name, observer=Observer()) as purgatory:
            waiting = (
                purgatory.wait("key", 1, timeout=1)
                if kind is ThresholdPurgatory
                else purgatory.wait_for(lambda: False, ["key"], timeout=1)
            )
            with pytest.raises(TimeoutError):
                await waiting
    await asyncio.sleep(3)
    assert told and all(message.startswith(r"jobs\nCRITICAL forged: ") for message in told)


@on_virtual_time
async def test_missed_trigger_warnings_are_rate_limited_per_purgatory(clock, lines):
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
async def test_successful_operations_are_not_logged(lines):
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


@on_virtual_time
async def test_drain_logs_how_many_operations_it_cancels(lines):
    for closable in (Purgatory("orders"), ThresholdPurgatory("versions")):
        waiting = []
        for key in ("tea", "milk"):
            wait = (
                closable.wait(Probe(5), [key])
                if isinstance(closable, Purgatory)
                else closable.wait(key, 1, 5)
            )
            waiting.append(asyncio.create_task(wait))
        endless = (
            closable.wait(Probe(), ["a"])
            if isinstance(closable, Purgatory)
            else closable.wait("a", 1)
        )
        waiting.append(asyncio.create_task(endless))
        await asyncio.sleep(0)
        await closable.aclose(drain=10)
        await asyncio.gather(*waiting, return_exceptions=True)
    message = "{}: the drain of 10.0 s was over before all had ended: cancelled 1"
    assert lines() == [
        ("purgatory", "WARNING", message.format(name)) for name in ("orders", "versions")
    ]
