"""Which requests come from this machine, under a local name, and through no proxy."""

import pytest

from purgatory._local import refusal

PEER = "the peer's address is not one of this machine"
HOST = "the header Host is not a local name of this machine"
PROXY = "which comes from a proxy"
HEADERS = """
    Akamai-Origin-Hop CDN-Loop CF-Connecting-IP Client-IP Fastly-Client-IP Fastly-FF Fly-Client-IP Forwarded Via
    WL-Proxy-Client-IP X-ARR-ClientCert X-Amzn-Trace-Id X-Azure-ClientIP X-Azure-FDID X-Cluster-Client-Ip
    X-Envoy-Expected-Rq-Timeout-Ms X-Envoy-External-Address X-Forwarded-For X-Forwarded-Host X-Forwarded-Proto
    X-Google-Real-IP X-Real-IP X-Vercel-Id
"""


def rule(peer: object, hosts: list[str], version: str = "1.1", header: str = "") -> str:
    headers = [(b"host", host.encode()) for host in hosts]
    headers += [(header.encode(), b"127.0.0.1")] * bool(header)
    client = None if peer is None else (peer, 50_000)
    return refusal({"client": client, "headers": headers, "http_version": version})


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("version", ["1.1", "2"])
def test_local_visitor_under_local_name_is_allowed(peer, version):
    hosts = ["localhost", "LOCALHOST:80", "127.0.0.1:65535", "127.9.8.7", "[::1]", "[::1]:8000"]
    assert {host: rule(peer, [host], version) for host in hosts} == dict.fromkeys(hosts, "")


@pytest.mark.parametrize(
    "peer",
    [
        *("192.0.2.1", "2001:db8::1", "::2", "::ffff:192.0.2.1"),
        *("", None, "testclient", "localhost", "127.0.0.1.example.com"),
    ],
)
def test_other_peer_is_refused(peer):
    assert rule(peer, ["localhost"]) == PEER
    assert rule(peer, ["localhost"], header="X-Forwarded-For") == PEER


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["localhost", "example.com"],
        *(
            [host]
            for host in (
                *("", "example.com", "127.0.0.1.example.com", "localhost.example.com:8000"),
                *("example.com:8000@localhost", "localhost@example.com", "localhost example.com"),
                *("localhost\nexample.com", "localhost\n", " localhost", "localhost:"),
                *("localhost:123456", "0.0.0.0:8000", "128.0.0.1", "2130706433", "::1", "[::2]"),
            )
        ),
    ],
)
def test_other_host_is_refused(hosts):
    assert rule("127.0.0.1", hosts) == HOST


@pytest.mark.parametrize("header", HEADERS.split())
def test_header_of_any_proxy_is_refused(header):
    assert PROXY in rule("127.0.0.1", ["localhost"], header=header)


def test_proxy_is_recognized_by_http_1_0():
    # Behind nginx: proxy_pass http://127.0.0.1:8000; and nothing else.
    expected = "it is in HTTP/1.0, which proxies speak and no browser does"
    assert rule("127.0.0.1", ["localhost"], "1.0") == expected
