"""A running stream can be looked at: its metrics and its page show its counts, and both end with
it."""

import socket
from typing import Any

import pytest

from purgatory.metrics import StreamMeter
from purgatory.pipeline.streaming import _dashboard
from purgatory.pipeline.streaming._dashboard import address, dashboard

ANYWHERE = ("127.0.0.1", 0)


def test_batch_without_counts_is_reported() -> None:
    meter = StreamMeter("x")
    progress: dict[str, Any] = {
        "sources": [{"numInputRows": 3}, {"numInputRows": 4}],
        "durationMs": {"triggerExecution": 1500},
        "stateOperators": [{"numRowsTotal": 5, "memoryUsedBytes": 6}],
        "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"},
        "observedMetrics": {},
    }
    _dashboard.update_meter(meter, progress)

    now = meter.statistics()
    assert (now.rows, now.batch_seconds, now.watermark, now.state_rows, now.registered) == (
        7,
        1.5,
        None,
        5,
        0,
    )


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
def test_foreign_address_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        address(text)


def test_addresses_of_this_machine_are_taken() -> None:
    assert [address(text) for text in ("127.0.0.1:0", "localhost:9109", "[::1]:80")] == [
        ("127.0.0.1", 0),
        ("localhost", 9109),
        ("::1", 80),
    ]


def test_taken_port_is_reported_in_one_line() -> None:
    with socket.create_server(ANYWHERE) as taken:
        where = taken.getsockname()
        complaint = rf"cannot serve on 127.0.0.1:{where[1]}: Address already in use"
        with pytest.raises(OSError, match=complaint), dashboard(StreamMeter("x"), where):
            pass


@pytest.mark.parametrize("path", ["/", "/metrics", "/events"])
def test_visitor_by_another_name_sees_nothing(path: str) -> None:
    with dashboard(StreamMeter("x"), ANYWHERE) as url:
        host, port = url.removeprefix("http://").rstrip("/").split(":")
        with socket.create_connection((host, int(port))) as visitor:
            head = f"GET {path} HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n"
            visitor.sendall(head.encode())
            assert b" 403 " in visitor.makefile("rb").readline()
