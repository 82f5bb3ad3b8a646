"""The text for Prometheus: in its format, by parsers that are not ours, with names that follow its
rules."""

import asyncio
import re
import urllib.request
from collections import Counter
from math import inf

import pytest
from asgi_requests import Request
from helpers import Probe, profiled
from loops import on_asyncio, on_virtual_time
from prometheus_client import CollectorRegistry, generate_latest, make_asgi_app, start_http_server
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from purgatory import Purgatory, ThresholdPurgatory
from purgatory.asgi import LongPolls
from purgatory.asgi._outcome import Ending
from purgatory.metrics import Meter, StreamMeter
from purgatory.metrics.prometheus import collector
from purgatory.relay import Relay


def registered(meter=None, **shown):
    """A registry with a collector."""
    registry = CollectorRegistry()
    registry.register(collector(meter or Meter(), **shown))
    return registry


async def scraped(tmp_path, read):
    """What `read` makes of a registry, of purgatories that are in use."""
    meter, polls = Meter(), LongPolls(max_open=None)
    polls.endings[Ending.DEADLINE] += 3
    versions: ThresholdPurgatory[str, int] = ThresholdPurgatory("versions")
    async with (
        Purgatory('"odd"\n\\name', observer=meter) as orders,
        Purgatory("jobs", observer=meter) as jobs,
        Purgatory("jobs") as more_jobs,
        Relay(f"file://{tmp_path}") as relay,
    ):
        purgatories = [orders, jobs, more_jobs]
        shown = {"thresholds": versions, "polls": polls, "relay": relay}
        registry = registered(meter, purgatories=purgatories, **shown)
        for purgatory in purgatories:
            for key in ("private", "secret"):
                purgatory.try_complete_else_watch(Probe(5), [key, "other"])
        versions.advance("private", 7)
        orders.try_complete_else_watch(Probe(ready=True), ["private"])
        operation = Probe(5)
        orders.try_complete_else_watch(operation, ["both"])
        operation.ready = True
        orders.check_and_complete("both")
        async with asyncio.TaskGroup() as group:
            waits = [relay.wait("x", 0), relay.receive("x"), relay.receive("y")]
            tasks = [group.create_task(wait) for wait in waits]
            await asyncio.sleep(0)
            result = read(registry)
            for task in tasks:
                task.cancel()
        return result


def samples(families):
    return {
        (s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples
    }


@on_asyncio
async def test_both_parsers_read_what_was_counted(tmp_path):
    def read(registry):
        text = generate_latest(registry).decode()
        openmetrics = generate_openmetrics(registry).decode()
        assert "private" not in text and "secret" not in text
        return samples(parse(text)), samples(parse_openmetrics(openmetrics))

    odd, kind, done = ("purgatory", '"odd"\n\\name'), ("kind", "Probe"), ("outcome", "completed")
    expected = {
        ("purgatory_operations_total", ("cause", "key"), kind, done, odd): 1,
        ("purgatory_operations_total", ("cause", "first try"), kind, done, odd): 1,
        ("purgatory_wait_seconds_count", kind, done, odd): 1,
        ("purgatory_wait_seconds_bucket", kind, ("le", "+Inf"), done, odd): 1,
        ("purgatory_pending_operations", ("purgatory", "jobs")): 4,
        ("purgatory_pending_operations", ("purgatory", "relay")): 3,
        ("purgatory_watches", ("purgatory", "jobs")): 8,
        ("purgatory_keys", ("purgatory", "versions")): 1,
        ("purgatory_polls_total", ("ending", "deadline")): 3,
        ("purgatory_open_polls_limit",): inf,
        ("purgatory_open_polls",): 0,
        ("purgatory_relay_connected",): 1,
    }
    for ending in ("satisfied", "gone", "stopping", "refused"):
        expected["purgatory_polls_total", ("ending", ending)] = 0
    for values in await scraped(tmp_path, read):
        assert {name: values.get(name) for name in expected} == expected


@on_asyncio
async def test_the_names_follow_the_rules_of_promtool(tmp_path):
    """The rules of `promtool check metrics`, for our metrics. That buckets add up is checked by the
    parser of OpenMetrics."""
    families = await scraped(
        tmp_path, lambda registry: [*parse(generate_latest(registry).decode())]
    )
    assert len({family.name for family in families}) == len(families) >= 18
    for family in families:
        name, type_ = family.name, family.type
        assert re.fullmatch(r"purgatory(_[a-z]+)+", name)
        assert family.documentation[0].isupper() and family.documentation.endswith(".")
        assert type_ in ("counter", "gauge", "histogram")
        assert not re.search(r"_(counter|gauge|histogram|summary|count|sum|bucket)$", name), (
            "the type is not in the name"
        )
        assert not re.search(r"(milli|micro|minutes|hours|_ms|_us)", name), "base units alone"
        assert family.samples, f"{name} has no samples"
        assert type_ != "histogram" or name.endswith("seconds")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (type_ == "counter")
            assert set(sample.labels) <= {"purgatory", "kind", "outcome", "cause", "ending", "le"}


def test_scrape_before_any_operation_is_empty():
    assert list(samples(parse(generate_latest(registered()).decode()))) == []
    with pytest.raises(TypeError, match="meter must be a Meter"):
        collector([])


@on_asyncio
async def test_scrapes_on_another_thread_are_exact():
    meter = Meter()
    async with Purgatory("jobs", observer=meter) as jobs:
        registry = registered(meter, purgatories=jobs)
        server, thread = start_http_server(0, "127.0.0.1", registry)
        try:
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            for number in range(3):
                read = asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
                reading = asyncio.create_task(read)
                while not reading.done():
                    operation = Probe(5)
                    jobs.try_complete_else_watch(operation, [number])
                    operation.ready = True
                    jobs.check_and_complete(number)
                    await asyncio.sleep(0)
                counted = samples(parse(await reading)).items()
                assert sum(n for (name, *_), n in counted if name.endswith("ns_total")) >= number
        finally:
            await asyncio.to_thread(server.shutdown)
            server.server_close()
            thread.join()


@on_virtual_time
async def test_a_scrape_costs_the_same_with_many_pending():
    meter = Meter()
    async with Purgatory("jobs", observer=meter) as jobs:
        registry = registered(meter, purgatories=jobs)
        jobs.try_complete_else_watch(Probe(ready=True), ["key"])
        few = profiled(lambda: generate_latest(registry))
        for key in range(5_000):
            jobs.try_complete_else_watch(Probe(60), [key])
        assert profiled(lambda: generate_latest(registry)) < few + 100


async def test_asgi_application_serves_the_same_text():
    async with Purgatory("jobs") as jobs:
        request = Request(make_asgi_app(registered(purgatories=jobs)), path="/metrics")
        request.body()
        await request.done()
        assert request.status == 200
        shown = samples(parse(request.content.decode()))
        assert shown["purgatory_pending_operations", ("purgatory", "jobs")] == 0


@on_virtual_time
async def test_a_sum_over_operations_counts_no_poll_twice():
    meter = Meter()
    jobs = Purgatory("jobs", observer=meter)
    polls = LongPolls(signals=(), observer=meter, max_open=7)
    registry = registered(meter, purgatories=jobs, polls=polls)

    async def answer(scope, receive, send):
        await polls.poll(scope, wait=1).wait_for(jobs, lambda: None, ["key"])

    for _ in range(3):
        await Request(polls.middleware(answer)).done()
    total: Counter[str] = Counter()
    for (name, *_), value in samples(registry.collect()).items():
        total[name.removeprefix("purgatory_")] += value
    counts = dict.fromkeys(("operations_total", "poll_waits_total", "polls_total"), 3)
    assert total.items() >= (counts | {"open_polls_limit": 7}).items()


@on_asyncio
async def test_names_with_surrogates_break_no_scrape():
    meter, stream = Meter(), StreamMeter("s\udfff")
    name, escaped = "a\ud800b", "a\\ud800b"
    async with (
        Purgatory(name, observer=meter) as purgatory,
        ThresholdPurgatory(name) as versions,
    ):
        shown = {"purgatories": purgatory, "thresholds": versions, "stream": stream}
        registry = registered(meter, **shown)
        purgatory.try_complete_else_watch(Probe(ready=True), ["key"])
        purgatory.try_complete_else_watch(Probe(5), ["key"])
        versions.advance("key", 1)
        for text in (generate_latest(registry), generate_openmetrics(registry)):
            assert text.decode()
        values = samples(parse(generate_latest(registry).decode()))
    label = ("purgatory", escaped)
    outcome = ("cause", "first try"), ("kind", "Probe"), ("outcome", "completed"), label
    assert values[("purgatory_operations_total", *outcome)] == 1
    assert values["purgatory_pending_operations", label] == 1
    assert values["purgatory_keys", label] == 2
    assert values["purgatory_stream_running", ("stream", "s\\udfff")] == 1
