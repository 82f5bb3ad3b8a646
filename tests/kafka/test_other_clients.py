"""Clients that are not Python's, unmodified: Java's own, in two versions, and kafkajs. They see here what they see on Kafka."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import KINDS, running
from maven import Unavailable, jars
from requirements import need, unavailable

HERE = Path(__file__).parent
PATIENCE = 200.0
KAFKAJS = "kafkajs@2.2.4"


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    try:
        with running(request.param) as broker:
            yield broker.address
    except Unavailable as error:
        unavailable(str(error))


def output(*command: str, **more: object) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, **more)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
def test_javas_client_administers_produces_and_consumes_in_groups(address: str, version: str) -> None:
    java = need("java", "needs Java 17: apt-get install openjdk-17-jre-headless")
    if "jdk.compiler" not in output(java, "--list-modules"):
        pytest.skip("this Java has no compiler: apt-get install openjdk-17-jdk-headless")
    try:
        path = os.pathsep.join(map(str, jars(f"org.apache.kafka:kafka-clients:{version}")))
    except Unavailable as error:
        unavailable(str(error))

    said = output(java, "-XX:TieredStopAtLevel=1", "-cp", path, str(HERE / "Client.java"), address).splitlines()

    after = next(line for line in said if line.startswith("first record after ms "))
    said.remove(after)
    assert said == [
        "partitions 3",
        "ends 1000",
        "first half 500",
        "second half 500",
        "groups [halves, warm]",
        "topics []",
    ]
    assert int(after.split()[-1]) < 10_000  # on a busy machine; see `against_kafka` for what it is


def test_kafkajs_administers_produces_and_consumes_in_groups(address: str) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs Node and npm: apt-get install nodejs npm")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "purgatory" / "npm"
    if not (folder / "node_modules" / "kafkajs").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        got = subprocess.run(
            [npm, "install", "--silent", "--prefix", folder, KAFKAJS],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        if got.returncode:
            unavailable(f"npm does not get {KAFKAJS}: {got.stderr[:200]}")

    seen = json.loads(
        output(node, str(HERE / "client.js"), address, env={**os.environ, "NODE_PATH": str(folder / "node_modules")})
    )

    firsts = [seen[name].pop("first") for name in ("first", "second")]
    assert seen == {
        "created": True,
        "partitions": 3,
        "first": {"values": 500},
        "second": {"values": 500},
        "groups": ["readers"],
        "ends": 1000,
    }
    assert max(firsts) < 30_000
