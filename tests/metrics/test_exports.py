"""What Prometheus and OpenTelemetry export, as their own parsers and SDK read it."""

import asyncio
import urllib.request
from collections import Counter
from contextlib import asynccontextmanager
from math import inf

import pytest
from asgi_requests import Request
from helpers import Probe, profiled
from loops import on_asyncio, on_virtual_time
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from purgatory import Purgatory, ThresholdPurgatory
from purgatory.asgi import LongPolls
from purgatory.asgi._outcome import Ending
from purgatory.metrics import Meter, StreamMeter
from purgatory.metrics.otel import observe
from purgatory.metrics.prometheus import collector
from purgatory.relay import Relay


def registered(meter=None, **shown):
    """A registry with a collector."""
    registry = CollectorRegistry()
    registry.register(collector(meter or Meter(), **shown))
    return registry


@pytest.fixture
def reader():
    """What reads the instruments of its provider."""
    reader = InMemoryMetricReader()
    reader.provider = MeterProvider([reader])
    yield reader
    reader.provider.shutdown()


def numbers(reader):
    """By instrument and attributes."""
    [resource] = reader.get_metrics_data().resource_metrics
    [scope] = resource.scope_metrics
    assert scope.scope.name == "purgatory"
    return {
        (metric.name, *sorted(point.attributes.items())): point.value
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def samples(families):
    return {
        (s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples
    }


ODD = '"odd"\n\\name'


@asynccontextmanager
async def in_use(folder):
    """A meter, and all that can be shown beside it."""
    meter, polls = Meter(), LongPolls(max_open=inf)
    polls.endings[Ending.DEADLINE] += 3
    versions: ThresholdPurgatory[str, int] = ThresholdPurgatory("versions")
    async with (
        Purgatory(ODD, observer=meter) as orders,
        Purgatory("jobs", observer=meter) as jobs,
        Purgatory("jobs") as more_jobs,
        Relay(f"file://{folder}", timeout=60) as relay,
        asyncio.TaskGroup() as group,
    ):
        purgatories = [orders, jobs, more_jobs]
        for purgatory in purgatories:
            for key in ("private", "secret"):
                purgatory.try_complete_else_watch(Probe(600), [key, "other"])
        versions.advance("private", 7)
        orders.try_complete_else_watch(Probe(ready=True), ["private"])
        operation = Probe(600)
        orders.try_complete_else_watch(operation, ["both"])
        operation.ready = True
        await asyncio.sleep(0.001)
        orders.check_and_complete("both")
        waits = [relay.wait("x", 0), relay.receive("x"), relay.receive("y")]
        tasks = [group.create_task(wait) for wait in waits]
        await asyncio.sleep(0)
        shown = {"purgatories": purgatories, "thresholds": versions, "polls": polls, "relay": relay}
        yield meter, shown
        for task in tasks:
            task.cancel()


PROBES, JOBS = {"kind": "Probe", "purgatory": ODD}, {"purgatory": "jobs"}
DONE = PROBES | {"outcome": "completed"}
COUNTED = [
    ("operations", "operations_total", DONE | {"cause": "key"}, 1),
    ("operations", "operations_total", DONE | {"cause": "first try"}, 1),
    ("missed_triggers", "missed_triggers_total", PROBES, 0),
    ("failed_tries", "failed_tries_total", PROBES, 1),
    ("pending", "pending_operations", JOBS, 4),
    ("pending", "pending_operations", {"purgatory": "relay"}, 3),
    ("watches", "watches", JOBS, 8),
    ("keys", "keys", {"purgatory": "versions"}, 1),
    ("polls", "polls_total", {"ending": "deadline"}, 3),
    *(
        ("polls", "polls_total", {"ending": ending}, 0)
        for ending in ("satisfied", "gone", "stopping", "refused")
    ),
    ("polls.open", "open_polls", {}, 0),
    ("relay.connected", "relay_connected", {}, 1),
    ("relay.epochs", "relay_epochs_total", {}, 1),
]
"""Names in OpenTelemetry and in Prometheus, labels, and values of the objects `in_use`."""


@on_asyncio
async def test_all_that_was_counted_is_exported(tmp_path, reader, caplog):
    async with in_use(tmp_path) as (meter, shown):
        registry = registered(meter, **shown)
        text = generate_latest(registry).decode()
        openmetrics = generate_openmetrics(registry).decode()
        observe(meter, **shown, meter_provider=reader.provider)
        exported = numbers(reader)
    assert "private" not in text + str(exported) and "secret" not in text + str(exported)
    ours, theirs = {}, {}
    for name, in_prometheus, labels, value in COUNTED:
        labels = sorted(labels.items())
        ours[f"purgatory.{name}", *labels] = value
        theirs[f"purgatory_{in_prometheus}", *labels] = value
    assert {name: exported.get(name) for name in ours} == ours
    done = sorted(DONE.items())
    waits = [value for name, value in exported.items() if name[0] == "purgatory.wait.operations"]
    assert sum(waits) == 1
    assert 0 < exported["purgatory.wait.duration", *done] < 50
    assert ("purgatory.polls.limit",) not in exported  # there is none
    assert [each for each in caplog.records if each.name.startswith("opentelemetry")] == []
    theirs["purgatory_open_polls_limit",] = inf
    theirs["purgatory_wait_seconds_count", *done] = 1
    theirs["purgatory_wait_seconds_bucket", *sorted([*done, ("le", "+Inf")])] = 1
    for values in samples(parse(text)), samples(parse_openmetrics(openmetrics)):
        assert {name: values.get(name) for name in theirs} == theirs


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


@on_virtual_time
async def test_lateness_is_exported_by_bucket(reader):
    meter = Meter()
    async with Purgatory("jobs", observer=meter) as jobs:
        with pytest.raises(TypeError, match="meter must be a Meter"):
            observe(None, meter_provider=reader.provider)
        observe(meter, meter_provider=reader.provider)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"^observe was called before .* one call$"):
                observe(Meter(), meter_provider=reader.provider)
        jobs.try_complete_else_watch(Probe(5), ["key"])
        await asyncio.sleep(6)
    found = numbers(reader).items()
    assert sum(value for (name, *_), value in found if name == "purgatory.lateness.operations") == 1


@on_asyncio
async def test_names_with_surrogates_break_no_export(reader):
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
        assert generate_openmetrics(registry).decode()
        observe(meter, purgatories=purgatory, meter_provider=reader.provider)
        exported = reader.get_metrics_data().to_json()
        values = samples(parse(generate_latest(registry).decode()))
    label = ("purgatory", escaped)
    outcome = ("cause", "first try"), ("kind", "Probe"), ("outcome", "completed"), label
    assert values[("purgatory_operations_total", *outcome)] == 1
    assert values["purgatory_pending_operations", label] == 1
    assert values["purgatory_keys", label] == 2
    assert values["purgatory_stream_running", ("stream", "s\\udfff")] == 1
    assert f'"purgatory": "{escaped}"'.replace("\\", "\\\\") in exported and "ud800b" in exported
