"""A running stream can be looked at: its metrics and its page show its counts, and both end with
it."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from streams import happens, put, running, until, waits

from purgatory.metrics import StreamMeter
from purgatory.pipeline.streaming import _job
from purgatory.pipeline.streaming._dashboard import dashboard, meter_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TIMEOUT = 300.0
"""Seconds that an answer may take while Spark has the machine."""


def scraped(url: str) -> dict[str, float]:
    """The metrics of a stream by their names, and by outcome."""
    with urlopen(f"{url}metrics", timeout=TIMEOUT) as answer:
        text = answer.read().decode()
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]
    found = {
        sample.labels.get("outcome", sample.name): sample.value
        for sample in samples
        if "_stream_" in sample.name
    }
    return {
        name.removeprefix("purgatory_stream_").removesuffix("_total"): value
        for name, value in found.items()
    }


def test_running_stream_is_scraped_until_its_end(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = waits("later", 60, 500, "q")  # takes the watermark there
    paid, unpaid = waits("paid", 1, 20, "x"), waits("unpaid", 1, 20, "y")
    put(tmp_path, "operations", paid, unpaid, waits("patient", 1, 500, "y"), late)
    put(tmp_path, "signals", happens("x", 5), happens("z", 60))
    urls: list[str] = []

    @contextlib.contextmanager
    def noted(meter: StreamMeter, where: tuple[str, int]) -> Iterator[str]:
        with dashboard(meter, where) as url:
            urls.append(url)
            yield url

    monkeypatch.setattr(_job, "dashboard", noted)
    more = ("--format", "json", "--serve", "127.0.0.1:0", "--idle", "never")
    with running(spark, tmp_path, *more) as job:
        until(lambda: bool(urls) or not job.is_alive())
        until(lambda: scraped(urls[0])["expired"] == 1)
        put(tmp_path, "operations", {"operation_id": "broken"})
        put(tmp_path, "signals", happens("y", 30))
        until(lambda: (now := scraped(urls[0]))["late"] == 1 and now["late_signals"] == 1)
        now = scraped(urls[0])
        with urlopen(f"{urls[0]}state", timeout=TIMEOUT) as answer:
            told = json.load(answer)["stream"]
        with urlopen(urls[0], timeout=TIMEOUT) as answer:
            assert b"<title>purgatory</title>" in answer.read()

    # "patient" is completed by the late signal
    assert [now[name] for name in ("completed", "expired", "rows", "running")] == [2, 1, 8, 1]
    assert now["pending_operations"] == 1 and now["state_rows"] > 0 and now["batches"] >= 2
    assert now["watermark_timestamp_seconds"] == told["watermark"] > 0
    assert (told["completed"], told["late"], told["name"]) == (2, 1, "checkpoint")
    with pytest.raises(URLError):
        urlopen(urls.pop(), timeout=TIMEOUT)
    again = meter_of("again", spark, str(tmp_path / "checkpoint")).statistics()
    assert (again.completed, again.expired, again.late, again.pending) == (2, 1, 1, 1)
