"""Which names and addresses count as this machine's own."""

import pytest

from purgatory._local import is_local_host, is_loopback


@pytest.mark.parametrize(
    "header",
    [b"localhost", b"LOCALHOST:8000", b"127.0.0.1", b"127.9.8.7:80", b"[::1]", b"[::1]:65535"],
)
def test_local_host_header_is_local(header: bytes) -> None:
    assert is_local_host(header)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"example.com",
        b"localhost.example.com",
        b"127.0.0.1.example.com",
        b"128.0.0.1",
        b"::1",
        b"[::2]",
        b"localhost:",
        b"localhost:123456",
        b"localhost\n",
        b" localhost",
    ],
)
def test_other_host_header_is_foreign(header: bytes) -> None:
    assert not is_local_host(header)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"])
def test_loopback_address_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "::2", "::ffff:10.0.0.1", "localhost", "", None])
def test_other_address_is_no_loopback(host: object) -> None:
    assert not is_loopback(host)
