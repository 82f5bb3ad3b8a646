"""Several workers: each serves its metrics on its own port, and their sum is complete."""

import socket
import subprocess
import sys
import urllib.request
from http.client import HTTPConnection

import pytest
from ports import free_ports
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families as parse

from purgatory import Purgatory
from purgatory.metrics import Meter
from purgatory.metrics.prometheus import collector, serve

WORKER = """
import asyncio, sys
from prometheus_client import REGISTRY
from purgatory import Purgatory
from purgatory.metrics import Meter
from purgatory.metrics.prometheus import collector, serve

async def main(ports, operations):
    meter = Meter()
    async with Purgatory("jobs", observer=meter) as jobs:
        REGISTRY.register(collector(meter, purgatories=jobs))
        for _ in range(operations):
            await jobs.wait_for(lambda: True, ["tea"])
        print(serve(ports).server_port, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main([int(port) for port in sys.argv[2:]], int(sys.argv[1])))
"""


@pytest.mark.slow
def test_ports_of_workers_sum_up():
    ports = free_ports(3)
    command = [sys.executable, "-c", WORKER]
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    workers = [
        subprocess.Popen([*command, str(operations), *map(str, ports)], **pipes, text=True)
        for operations in (3, 4)
    ]
    try:
        taken = [int(worker.stdout.readline()) for worker in workers]
        assert len(set(taken)) == 2 and set(taken) <= set(ports)
        total = 0.0
        for port in taken:
            url = f"http://127.0.0.1:{port}/metrics"
            families = parse(urllib.request.urlopen(url, timeout=200).read().decode())
            [operations] = [each for each in families if each.name == "purgatory_operations"]
            total += sum(sample.value for sample in operations.samples)
        assert total == 7
    finally:
        for worker in workers:
            worker.communicate()
    assert [worker.returncode for worker in workers] == [0, 0]


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
def test_metrics_on_local_address_refuse_foreign_host(
    address: str, host: str | None, status: int
) -> None:
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
