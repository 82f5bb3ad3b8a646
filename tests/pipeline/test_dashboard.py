"""A running stream can be looked at: its metrics and its page say what it has done, and both are gone with it."""

import argparse
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from test_streaming import arguments, happens, put, waits

from purgatory.metrics import StreamMeter
from purgatory.pipeline.streaming import _dashboard, _job
from purgatory.pipeline.streaming._command import add_arguments
from purgatory.pipeline.streaming._dashboard import address, dashboard, meter_of
from purgatory.pipeline.streaming._job import Job

ANYWHERE = ("127.0.0.1", 0)


def scraped(url: str) -> dict[str, float]:
    """The metrics of a stream by their names, and by outcome."""
    with urlopen(f"{url}metrics", timeout=30) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {sample.labels.get("outcome", sample.name): sample.value for sample in samples if "_stream_" in sample.name}
    return {name.removeprefix("purgatory_stream_").removesuffix("_total"): value for name, value in found.items()}


def until(holds: Callable[[], bool]) -> None:
    """Waits for it; the timeout of the test is how long at most."""
    while not holds():
        time.sleep(0.1)


@pytest.mark.timeout(600)  # a busy machine takes its time for each batch
def test_a_stream_is_scraped_while_it_runs_and_its_dashboard_ends_with_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = waits("later", 60, 500, "q")  # takes the watermark there
    put(tmp_path, "operations", waits("paid", 1, 20, "x"), waits("unpaid", 1, 20, "y"), waits("patient", 1, 500, "y"), late)
    put(tmp_path, "signals", happens("x", 5), happens("z", 60))
    urls: list[str] = []

    @contextlib.contextmanager
    def noted(meter: StreamMeter, where: tuple[str, int]) -> Iterator[str]:
        with dashboard(meter, where) as url:
            urls.append(url)
            yield url

    monkeypatch.setattr(_job, "dashboard", noted)
    parser, stop = argparse.ArgumentParser(), threading.Event()
    add_arguments(parser)

    job = Job(spark, parser.parse_args(arguments(tmp_path, "--format", "json", "--serve", "127.0.0.1:0")), stop)
    thread = threading.Thread(target=job.run)
    thread.start()
    until(lambda: bool(urls))
    try:
        until(lambda: scraped(urls[0])["expired"] == 1)
        put(tmp_path, "operations", {"operation_id": "broken"})
        put(tmp_path, "signals", happens("y", 30))
        until(lambda: (now := scraped(urls[0]))["late"] == 1 and now["late_signals"] == 1)
        now = scraped(urls[0])
        with urlopen(f"{urls[0]}state", timeout=30) as answer:
            told = json.load(answer)["stream"]
        with urlopen(urls[0], timeout=30) as answer:
            assert b"<title>purgatory</title>" in answer.read()
    finally:
        stop.set()
        thread.join()

    assert (now["completed"], now["expired"], now["rows"], now["running"]) == (2, 1, 8, 1)  # "patient" by the late signal
    assert now["pending_operations"] == 1 and now["state_rows"] > 0 and now["batches"] >= 2
    assert now["watermark_timestamp_seconds"] == told["watermark"] > 0
    assert (told["completed"], told["late"], told["name"]) == (2, 1, "checkpoint")
    with pytest.raises(URLError):
        urlopen(urls.pop(), timeout=30)
    again = meter_of("again", spark, str(tmp_path / "checkpoint")).statistics()
    assert (again.completed, again.expired, again.late, again.pending) == (2, 1, 1, 1)


def test_a_batch_without_counts_and_without_a_watermark_is_told_all_the_same() -> None:
    meter = StreamMeter("x")
    progress: dict[str, Any] = {
        "sources": [{"numInputRows": 3}, {"numInputRows": 4}],
        "durationMs": {"triggerExecution": 1500},
        "stateOperators": [{"numRowsTotal": 5, "memoryUsedBytes": 6}],
        "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"},
        "observedMetrics": {},
    }
    _dashboard.tell(meter, progress)

    now = meter.statistics()
    assert (now.rows, now.batch_seconds, now.watermark, now.state_rows, now.registered) == (7, 1.5, None, 5, 0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0.0.0.0:9109", "can be reached from elsewhere"),
        ("10.0.0.7:9109", "can be reached from elsewhere"),
        ("example.org:9109", "is not HOST:PORT"),
        ("9109", "is not HOST:PORT"),
        ("127.0.0.1:", "is not HOST:PORT"),
        ("127.0.0.1:65536", "is not HOST:PORT"),
    ],
)
def test_an_address_that_is_none_of_this_machine_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        address(text)


def test_addresses_of_this_machine_are_taken() -> None:
    assert [address(text) for text in ("127.0.0.1:0", "localhost:9109", "[::1]:80")] == [
        ("127.0.0.1", 0),
        ("localhost", 9109),
        ("::1", 80),
    ]


def test_a_port_that_is_taken_is_told_in_one_line() -> None:
    with socket.create_server(ANYWHERE) as taken:
        where = taken.getsockname()
        complaint = rf"cannot serve on 127.0.0.1:{where[1]}: Address already in use"
        with pytest.raises(OSError, match=complaint), dashboard(StreamMeter("x"), where):
            pass


def test_who_comes_by_another_name_sees_nothing_of_the_page() -> None:
    with dashboard(StreamMeter("x"), ANYWHERE) as url:
        host, port = url.removeprefix("http://").rstrip("/").split(":")
        with socket.create_connection((host, int(port))) as visitor:
            visitor.sendall(b"GET / HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n")
            assert b" 403 " in visitor.makefile("rb").readline()
