"""What OpenTelemetry's own SDK exports of it: instruments, and a span for each wait."""

import asyncio

import pytest
from helpers import Probe, raiser
from loops import on_asyncio, on_virtual_time
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from purgatory import OperationTimeout, Purgatory, ThresholdPurgatory
from purgatory.asgi import LongPolls
from purgatory.asgi._outcome import Ending
from purgatory.metrics import Meter
from purgatory.metrics.otel import Spans, observe
from purgatory.relay import Relay


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


@pytest.fixture
def reader():
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    reader.provider = provider
    yield reader
    provider.shutdown()


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


@on_asyncio
async def test_the_instruments_say_what_the_meter_has_counted(reader, tmp_path):
    meter, polls = Meter(), LongPolls()
    polls.endings[Ending.GONE] += 2
    versions: ThresholdPurgatory[str, int] = ThresholdPurgatory("versions")
    async with Purgatory("jobs", observer=meter) as jobs, Relay(f"file://{tmp_path}") as relay:
        shown = {"purgatories": jobs, "thresholds": [versions], "polls": polls, "relay": relay}
        observe(meter, **shown, meter_provider=reader.provider)
        versions.advance("orders", 1)
        for number in range(3):
            operation = Probe(50)
            jobs.try_complete_else_watch(operation, [number])
        operation.ready = True
        await asyncio.sleep(0.001)
        jobs.check_and_complete(number)
        receiving = asyncio.create_task(relay.receive("order"))
        await asyncio.sleep(0)
        exported = numbers(reader)
        receiving.cancel()
    kind, jobs_, done = ("kind", "Probe"), ("purgatory", "jobs"), ("outcome", "completed")
    expected = {
        ("purgatory.operations", ("cause", "key"), kind, done, jobs_): 1,
        ("purgatory.missed_triggers", kind, jobs_): 0,
        ("purgatory.retries", kind, jobs_): 0,
        ("purgatory.pending", jobs_): 2,
        ("purgatory.watches", jobs_): 2,
        ("purgatory.pending", ("purgatory", "relay")): 1,
        ("purgatory.keys", ("purgatory", "versions")): 1,
        ("purgatory.polls", ("ending", "gone")): 2,
        ("purgatory.polls", ("ending", "refused")): 0,
        ("purgatory.relay.connected",): 1,
        ("purgatory.relay.epochs",): 1,
    }
    assert {name: exported.get(name) for name in expected} == expected
    waits = [value for name, value in exported.items() if name[0] == "purgatory.wait.operations"]
    assert sum(waits) == 1
    assert 0 < exported["purgatory.wait.duration", kind, done, jobs_] < 50


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


@on_virtual_time
async def test_span_of_a_wait_links_its_completion(provider, exporter):
    tracer, spans = provider.get_tracer("app"), Spans(tracer_provider=provider, tell_keys=True)
    results = {}

    async def request(jobs):
        with tracer.start_as_current_span("GET /results"):
            return await jobs.wait_for(lambda: results.get("tea"), ["tea", 7], 30)

    async with Purgatory("jobs", observer=spans) as jobs:
        asking = asyncio.create_task(request(jobs))
        await asyncio.sleep(1)
        with tracer.start_as_current_span("POST /results") as posting:
            results["tea"] = "ready"
            jobs.check_and_complete("tea")
        assert await asking == "ready"
    wait, get = [span for span in exporter.get_finished_spans() if span.name != "POST /results"]
    assert (wait.name, get.name) == ("jobs wait", "GET /results")
    assert wait.parent.span_id == get.context.span_id
    [link] = wait.links
    assert link.context == posting.get_span_context()
    assert dict(wait.attributes) == {
        "purgatory.name": "jobs", "purgatory.kind": "Condition", "purgatory.outcome": "completed", "purgatory.cause": "key",
        "purgatory.failed_tries": 1, "purgatory.missed_trigger": False, "purgatory.timeout": 30.0, "purgatory.keys": "'tea', 7",
    }  # fmt: skip


@on_virtual_time
async def test_expired_wait_has_no_link(provider, exporter, reports):
    tracer, spans = provider.get_tracer("app"), Spans(tracer_provider=provider)
    async with Purgatory("jobs", observer=spans) as jobs:
        with tracer.start_as_current_span("GET /results"):
            with pytest.raises(OperationTimeout):
                await jobs.wait_for(lambda: None, ["tea"], 30)
            jobs.try_complete_else_watch(Probe(ready=True), ["tea"])
            jobs.try_complete_else_watch(Probe(30, trying=raiser(KeyError("no"))), ["tea"])
            waiting = Probe()
            jobs.try_complete_else_watch(waiting, ["tea"])
            waiting.cancel()
    expired, at_once, failed, cancelled, _ = exporter.get_finished_spans()
    assert expired.attributes["purgatory.outcome"] == "expired" and not expired.links
    assert at_once.attributes["purgatory.cause"] == "first try"
    assert failed.status.status_code.name == "ERROR" and failed.events[0].name == "exception"
    assert cancelled.attributes["purgatory.outcome"] == "cancelled"
    assert "purgatory.timeout" not in cancelled.attributes
    assert not (at_once.links or failed.links or cancelled.links)  # their own request's ends
    for span in (expired, at_once, failed, cancelled):
        assert "purgatory.keys" not in span.attributes
    assert spans._waiting == {}


@on_virtual_time
async def test_what_is_not_sampled_is_not_kept():
    spans = Spans(tracer_provider=TracerProvider(sampler=ALWAYS_OFF))
    async with Purgatory("jobs", observer=spans) as jobs:
        jobs.try_complete_else_watch(Probe(5), ["tea"])
        assert spans._waiting == {}
    without_an_sdk = Spans()
    async with Purgatory("jobs", observer=without_an_sdk) as jobs:
        jobs.try_complete_else_watch(Probe(5), ["tea"])
        assert without_an_sdk._waiting == {}


@on_virtual_time
async def test_names_with_lone_surrogates_can_be_exported(provider, exporter, reader):
    meter, spans = Meter(), Spans(tracer_provider=provider, tell_keys=True)
    name, escaped = "a\ud800b", "a\\ud800b"

    async with Purgatory(name, observer=[meter, spans]) as purgatory:
        observe(meter, purgatories=purgatory, meter_provider=reader.provider)
        operation = Probe(completing=raiser(RuntimeError(name)))
        purgatory.try_complete_else_watch(operation, [name])
        operation.force_complete()
        with pytest.raises(RuntimeError):
            operation.result()
        exported = reader.get_metrics_data().to_json()
    [span] = exporter.get_finished_spans()

    assert f'"purgatory": "{escaped}"'.replace("\\", "\\\\") in exported and "ud800b" in exported
    assert (span.name, span.attributes["purgatory.name"]) == (f"{escaped} wait", escaped)
    assert span.status.description == escaped
    of_events = [value for event in span.events for value in event.attributes.values()]
    for text in (span.name, *map(str, span.attributes.values()), *of_events):
        assert text.encode()
