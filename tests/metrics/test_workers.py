"""Several workers: each serves its metrics on the first port that is free."""

import socket
from http.client import HTTPConnection

import pytest
from ports import free_ports
from prometheus_client import CollectorRegistry

from purgatory import Purgatory
from purgatory.metrics import Meter
from purgatory.metrics.prometheus import collector, serve


def test_workers_serve_on_consecutive_free_ports():
    ports = free_ports(3)
    servers = [serve(ports, registry=CollectorRegistry()) for _ in range(3)]
    assert [server.server_port for server in servers] == ports
    for server in servers:
        server.shutdown()
        server.server_close()


def test_error_without_free_port_names_ports():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"none of the ports \[{port}\] is free"):
            serve([port], registry=CollectorRegistry())
    with pytest.raises(OSError, match="assign"):
        serve([port], address="203.0.113.1", registry=CollectorRegistry())


@pytest.mark.parametrize(
    ("address", "host", "status"),
    [
        ("127.0.0.1", "localhost:1", 200),
        ("localhost", "evil.example", 403),
        ("127.0.0.1", "127.0.0.1.evil.example", 403),
        ("127.0.0.1", None, 403),
        ("0.0.0.0", "worker-7.internal:9400", 200),  # how Prometheus names a remote target
    ],
)
def test_metrics_on_local_address_refuse_foreign_host(address, host, status):
    registry = CollectorRegistry()
    registry.register(collector(Meter(), purgatories=Purgatory("secret")))
    server = serve([0], address=address, registry=registry)
    try:
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.putrequest("GET", "/metrics", skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        response = connection.getresponse()
        assert response.status == status
        assert (b"secret" in response.read()) is (status == 200)
        connection.close()
    finally:
        server.shutdown()
        server.server_close()
