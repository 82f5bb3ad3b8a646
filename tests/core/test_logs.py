"""Log records under `purgatory`: their text, their rate, and no others."""

import asyncio
import logging
import sys
import uuid

import pytest
from helpers import Probe
from loops import on_virtual_time

from purgatory import IdleTracker, Purgatory, ThresholdPurgatory
from purgatory._core import logs as _logs
from purgatory._core.arguments import describe, printable


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The clock of the rate limits, which moves only when it is set."""
    now = [0.0]
    for name in ("missed_triggers", "similar_keys"):
        monkeypatch.setattr(_logs, name, _logs.RateLimit(lambda: now[0]))
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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("jobs, café, \u7d2b", "jobs, café, \u7d2b"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("a\r\nb", r"a\r\nb"),
        ("\u202ecod", r"\u202ecod"),
        ("\ud800", r"\ud800"),
        (7, "7"),
    ],
)
def test_printable_escapes_what_a_terminal_would_execute(text, shown):
    assert printable(text) == shown


def test_repr_with_newlines_is_described_in_one_line():
    class Job:
        def __repr__(self):
            return "<Job\n\x1b]0;title>"

    assert describe(Job()) == r"<Job\n\x1b]0;title>"


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
async def test_purgatory_names_in_log_lines_are_printable(lines):
    async with Purgatory("jobs\nCRITICAL forged") as jobs:
        await miss(jobs, ["tea"], timeout=1)
        jobs.try_complete_else_watch(Probe(), ["tea"])
        await jobs.aclose(drain=1)
    assert len(lines()) == 2
    assert all(message.startswith(r"jobs\nCRITICAL forged: ") for _, _, message in lines())


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


SIMILAR_KEYS = [
    (42, "42", "the checked key 42 (int) has no waiters, but '42' (str) has"),
    ("42", 42, "the checked key '42' (str) has no waiters, but 42 (int) has"),
    ("0.5", 0.5, "'0.5' (str)"),
    (b"tea", "tea", "b'tea' (bytes)"),
    ("tea", b"tea", "but b'tea' (bytes) has"),
    (uuid.UUID(int=7), str(uuid.UUID(int=7)), "(UUID)"),
    (str(uuid.UUID(int=7)), uuid.UUID(int=7), "(UUID)"),
]


@pytest.mark.parametrize(("checked", "watched", "words"), SIMILAR_KEYS)
@pytest.mark.parametrize(("debug", "asked_for"), [(True, ""), (False, ""), (False, "1")])
def test_debug_mode_hints_at_key_of_another_type(
    checked, watched, words, debug, asked_for, lines, monkeypatch
):
    monkeypatch.setenv("PYTHONASYNCIODEBUG", asked_for)

    async def main():
        async with Purgatory("orders") as orders:
            orders.try_complete_else_watch(Probe(), [watched])
            assert orders.check_and_complete(checked) == 0
            assert orders.check_and_complete(checked) == 0
            orders.check_and_complete(watched)

    asyncio.run(main(), debug=debug)  # as uvicorn does, whatever Python's debug setting is
    told = [message for name, _, message in lines() if name == "purgatory"]
    assert len(told) == (debug or bool(asked_for) or sys.flags.dev_mode)
    assert all(
        message.startswith("orders: the checked key ") and words in message for message in told
    )


def test_unrelated_key_causes_no_hint_in_debug_mode(lines):
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


def test_rate_limit_remembers_a_bounded_number_of_names():
    now = [0.0]
    limit = _logs.RateLimit(lambda: now[0])
    names = [str(name) for name in range(3 * _logs.MAX_NAMES)]
    for _ in range(3):
        assert all(limit.allow(name) for name in names)
        # Each is suppressed once more; its count is dropped with its name.
        for name in names[-_logs.MAX_NAMES :]:
            assert not limit.allow(name)
        now[0] += _logs.MESSAGE_INTERVAL
    assert len(limit._names) == _logs.MAX_NAMES


def test_rate_limit_counts_suppressed_messages():
    now = [0.0]
    limit = _logs.RateLimit(lambda: now[0])
    assert limit.allow("a") and limit.suppressed("a") == "" == limit.suppressed("b")
    assert [limit.allow("a"), limit.allow("b"), limit.allow("a")] == [False, True, False]
    now[0] = _logs.MESSAGE_INTERVAL
    assert limit.allow("a")
    assert limit.suppressed("a") == " (2 more since the last such message)"
    assert limit.suppressed("a") == ""
    now[0] = 2 * _logs.MESSAGE_INTERVAL - 0.001
    assert not limit.allow("a")
