"""Several workers: each serves its metrics on its own port, and their sum is complete."""

import socket
import subprocess
import sys
import urllib.request

import pytest
from ports import free_ports
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families as parse

from purgatory.metrics.prometheus import serve

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
def test_each_worker_has_a_port_and_together_they_count_all_operations():
    ports = free_ports(3)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(operations), *map(str, ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for operations in (3, 4)
    ]
    try:
        taken = [int(worker.stdout.readline()) for worker in workers]
        assert len(set(taken)) == 2 and set(taken) <= set(ports)
        total = 0.0
        for port in taken:
            text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=200).read().decode()
            [operations] = [family for family in parse(text) if family.name == "purgatory_operations"]
            total += sum(sample.value for sample in operations.samples)
        assert total == 7
    finally:
        for worker in workers:
            worker.communicate()
    assert [worker.returncode for worker in workers] == [0, 0]


def test_without_a_free_port_it_says_which_were_tried():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"none of the ports \[{port}\] is free"):
            serve([port], registry=CollectorRegistry())
    with pytest.raises(OSError, match="assign"):
        serve([port], address="203.0.113.1", registry=CollectorRegistry())
