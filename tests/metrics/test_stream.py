"""The counts of a stream of the pipeline: summed up, and shown by Prometheus and the page."""

import httpx2
from prometheus_client import CollectorRegistry

from purgatory.console import console
from purgatory.metrics import Meter, StreamMeter
from purgatory.metrics.prometheus import collector

WATERMARK = 1_767_268_800.0


def a_stream() -> StreamMeter:
    stream = StreamMeter("orders", registered=10, completed=5, expired=1, late=1)
    size = {"state_rows": 7, "state_bytes": 4096}
    ended = {"registered": 4, "completed": 2, "late_signals": 3}
    stream.batch_ended(rows=30, seconds=1.5, watermark=WATERMARK, **size, **ended)
    size = {"state_rows": 6, "state_bytes": 2048}
    stream.batch_ended(rows=0, seconds=0.5, watermark=None, **size, expired=1, late=1)
    return stream


def test_batches_are_added_to_what_was_there_before() -> None:
    now = a_stream().statistics()

    ended = (now.registered, now.completed, now.expired, now.late, now.late_signals, now.pending)
    assert ended == (14, 7, 2, 2, 3, 3)
    assert (now.rows, now.batches, now.batch_rows, now.batch_seconds) == (30, 2, 0, 0.5)
    assert (now.watermark, now.state_rows, now.state_bytes) == (WATERMARK, 6, 2048)


def test_prometheus_reads_a_stream() -> None:
    registry = CollectorRegistry()
    registry.register(collector(Meter(), stream=(stream := a_stream())))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"purgatory_stream_{name}", {"stream": "orders", **labels})

    outcomes = {"completed": 7, "expired": 2, "late": 2}
    assert {each: value("operations_total", outcome=each) for each in outcomes} == outcomes
    expected = {
        "pending_operations": 3, "late_signals_total": 3, "rows_total": 30, "batches_total": 2,
        "batch_seconds": 0.5, "state_rows": 6, "state_bytes": 2048,
        "watermark_timestamp_seconds": WATERMARK, "running": 1,
    }  # fmt: skip
    assert {name: value(name) for name in expected} == expected
    stream.ended()
    assert value("running") == 0


async def test_page_shows_stream_behind_once_something_is_due() -> None:
    stream, watermark = a_stream(), WATERMARK
    assert stream.statistics().behind(watermark + 60) == 0
    stream.looked(next_due=watermark + 5, held_back_by="signals", silent_since=watermark, overdue=2)
    now = stream.statistics()
    assert [now.behind(watermark + second) for second in (4, 5, 60)] == [0, 5, 60]
    registry = CollectorRegistry()
    registry.register(collector(Meter(), stream=stream))
    transport = httpx2.ASGITransport(console(stream=stream), client=("127.0.0.1", 5))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
        shown = (await client.get("/state")).json()["stream"]

    labels = {"stream": "orders"}
    behind = registry.get_sample_value("purgatory_stream_behind_seconds", labels)
    assert behind is not None and behind > 0
    assert registry.get_sample_value("purgatory_stream_overdue_operations", labels) == 2
    expected = {
        "name": "orders", "isRunning": True, "pending": 3, "completed": 7, "watermark": watermark,
        "stateRows": 6, "lateSignals": 3, "rows": 30, "heldBackBy": "signals", "overdue": 2,
    }  # fmt: skip
    assert shown.items() >= expected.items()
    assert shown["behind"] > 0 and shown["silent"] > 0
