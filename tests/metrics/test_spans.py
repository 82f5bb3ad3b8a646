"""The spans of waits, as OpenTelemetry's own SDK exports them."""

import asyncio

import pytest
from helpers import Probe, raiser
from loops import on_virtual_time
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from purgatory import OperationTimeout, Purgatory
from purgatory.metrics.otel import Spans


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


@on_virtual_time
async def test_span_of_a_wait_links_its_completion(provider, exporter):
    tracer, spans = provider.get_tracer("app"), Spans(tracer_provider=provider, record_keys=True)
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
async def test_names_with_lone_surrogates_can_be_exported(provider, exporter):
    spans = Spans(tracer_provider=provider, record_keys=True)
    name, escaped = "a\ud800b", "a\\ud800b"

    async with Purgatory(name, observer=spans) as purgatory:
        operation = Probe(completing=raiser(RuntimeError(name)))
        purgatory.try_complete_else_watch(operation, [name])
        operation.force_complete()
        with pytest.raises(RuntimeError):
            operation.result()
    [span] = exporter.get_finished_spans()

    assert (span.name, span.attributes["purgatory.name"]) == (f"{escaped} wait", escaped)
    assert span.status.description == escaped
    of_events = [value for event in span.events for value in event.attributes.values()]
    for text in (span.name, *map(str, span.attributes.values()), *of_events):
        assert text.encode()
