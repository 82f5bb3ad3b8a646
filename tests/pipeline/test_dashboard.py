"""A running stream can be looked at: its metrics and its page show its counts, and both end with
it."""

import argparse
import socket

import pytest

from purgatory.metrics import StreamMeter
from purgatory.pipeline.streaming._command import _address
from purgatory.pipeline.streaming._dashboard import dashboard

ANYWHERE = ("127.0.0.1", 0)


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0:9109", "10.0.0.7:9109", "example.org:9109", "9109", "127.0.0.1:", "127.0.0.1:65536"],
)
def test_foreign_address_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not HOST:PORT of this machine"):
        _address(text)
    assert [_address(text) for text in ("localhost:9109", "[::1]:80")] == [
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
