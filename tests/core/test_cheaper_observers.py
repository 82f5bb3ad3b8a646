"""The cheaper forms of observers: the fields of an event without the event, the duration without
the fields, and no checks."""

import asyncio

from helpers import Listener, Probe, raiser
from loops import on_virtual_time

from purgatory import Cause, Ended, Observer, Purgatory


class Fields(Listener):
    """Is notified of the fields of events."""

    def __init__(self):
        super().__init__()
        self.fields = []
        self.ended_fields = self.fields.append


class Waits:
    """Is notified only of the duration of most operations, and of no checks."""

    key_checked = Observer.key_checked

    def __init__(self):
        self.asked, self.ended, self.waited = [], [], []

    def operation_ended(self, ended):
        self.ended.append(ended)

    def completed_by_key(self, purgatory, kind):
        self.asked.append((purgatory, kind))
        return lambda seconds: self.waited.append((kind, seconds))


class Other(Probe):
    pass


async def several_ends(purgatory):
    """Ends six operations; a key completes the first, second and last, the second at its second
    check."""
    for kind, checks_in_vain in ((Probe, 0), (Probe, 1), (Other, 0)):
        operation = kind(60)
        purgatory.try_complete_else_watch(operation, ["key"])
        for _ in range(checks_in_vain):
            purgatory.check_and_complete("key")
        await asyncio.sleep(10)
        operation.ready = True
        purgatory.check_and_complete("key")
    for end in (Probe.cancel, Probe.force_complete):
        operation = Probe(60)
        purgatory.try_complete_else_watch(operation, ["key"])
        end(operation)
    purgatory.try_complete_else_watch(Probe(5), ["key"])
    await asyncio.sleep(6)


@on_virtual_time
async def test_fields_observer_gets_plain_tuples_and_no_events():
    whole, fields = Listener(), Fields()
    async with Purgatory("orders", observer=[fields, whole]) as purgatory:
        await several_ends(purgatory)
    assert len(whole.ended) == 6 and fields.ended == []
    assert [Ended(*each) for each in fields.fields] == whole.ended
    assert {type(each) for each in fields.fields} == {tuple}
    assert (
        fields.checks
        == whole.checks
        == [("key", 1, 1), ("key", 1, 0), ("key", 1, 1), ("key", 1, 1)]
    )


@on_virtual_time
async def test_duration_observer_gets_durations_and_remaining_events():
    whole, first, second = Listener(), Waits(), Waits()
    async with Purgatory("orders", observer=[first, whole, second]) as purgatory:
        await several_ends(purgatory)
    for waits in (first, second):
        assert waits.asked == [("orders", "Probe"), ("orders", "Other")]
        assert waits.waited == [("Probe", 10.0), ("Other", 10.0)]
        assert waits.ended == [
            ended for ended in whole.ended if (ended.cause, ended.failed_tries) != (Cause.KEY, 1)
        ]


@on_virtual_time
async def test_checks_work_without_an_observer_of_checks():
    waits = Waits()
    async with Purgatory("orders", observer=waits) as purgatory:
        operations = [Probe(60, ready=False) for _ in range(1500)]
        for operation in operations:
            purgatory.try_complete_else_watch(operation, ["key"])
        for operation in operations[::2]:
            operation.ready = True
        purgatory.check_and_complete("key")
        await asyncio.sleep(1)
        assert purgatory.pending == 750 and len(waits.waited) == 750


@on_virtual_time
async def test_retried_operation_does_not_slow_the_others():
    waits = Waits()
    async with Purgatory("orders", observer=waits) as purgatory:
        purgatory.try_complete_else_watch(Probe(60), ["other"])
        purgatory.check_and_complete("other")
        purgatory.try_complete_else_watch(Probe(), ["endless"])
        operation = Probe(60)
        purgatory.try_complete_else_watch(operation, ["key"])
        operation.ready = True
        purgatory.check_and_complete("key")
    assert waits.waited == [("Probe", 0.0)]


@on_virtual_time
async def test_raising_observer_does_not_affect_the_others(reports):
    fields, waits, bad, worse, worst, whole = (
        Fields(),
        Waits(),
        Fields(),
        Waits(),
        Waits(),
        Listener(),
    )
    bad.ended_fields = raiser(ZeroDivisionError())
    worse.completed_by_key = lambda *_: raiser(ZeroDivisionError())
    worst.completed_by_key = lambda *_: raiser(ZeroDivisionError())(None)
    async with Purgatory("orders", observer=[bad, worse, worst, fields, waits, whole]) as purgatory:
        await several_ends(purgatory)
    assert len(fields.fields) == len(whole.ended) == 6
    assert waits.waited == [("Probe", 10.0), ("Other", 10.0)]
    assert len(reports) == 6 + 2 + 2  # the fields of six ends, two durations, and each kind once
    assert all(type(report["exception"]) is ZeroDivisionError for report in reports)


@on_virtual_time
async def test_raising_single_observer_is_reported(reports):
    waits = Waits()
    waits.completed_by_key = lambda *_: raiser(ZeroDivisionError())
    async with Purgatory("orders", observer=waits) as purgatory:
        await several_ends(purgatory)
        assert purgatory.statistics().completed == 4
    assert len(reports) == 2 and "completed_by_key" in reports[0]["message"]
