"""Clients that are not Python's, unmodified: Java's own, in two versions, kafkajs and franz-go.

If a test runs on both brokers, they see the same.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from brokers import KINDS, running
from exactly_once import COUNT, transform_and_kill
from golang import compiled
from maven import Unavailable
from other_clients import JAVA_CLIENTS, java, java_command, kafkajs
from requirements import unavailable

FOLDER = Path(__file__).parent
FRANZ_GO = "github.com/twmb/franz-go/pkg/kgo@v1.22.2"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # a busy machine takes minutes to start JVMs


@contextmanager
def address_of(kind: str) -> Iterator[str]:
    try:
        with running(kind) as broker:
            yield broker.address
    except Unavailable as error:
        unavailable(str(error))


@pytest.mark.parametrize(
    ("kind", "version"),
    [*(("ours", version) for version in JAVA_CLIENTS), ("Kafka", JAVA_CLIENTS[-1])],
)
def test_javas_client_administers_produces_and_consumes_in_groups(kind: str, version: str) -> None:
    with address_of(kind) as address:
        printed = java("Client.java", address, client=version).splitlines()

    assert printed == [
        "partitions 3",
        "ends 1000",
        "first half 500",
        "second half 500",
        "groups [halves]",
        "topics []",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_kafkajs_administers_produces_and_consumes_in_groups(kind: str) -> None:
    with address_of(kind) as address:
        seen = json.loads(kafkajs("client.js", address))

    assert seen == {
        "created": True,
        "partitions": 3,
        "first": 500,
        "second": 500,
        "groups": ["readers"],
        "ends": 1000,
    }


@pytest.mark.parametrize(
    ("kind", "version"),
    [*(("ours", version) for version in JAVA_CLIENTS), ("Kafka", JAVA_CLIENTS[-1])],
)
def test_javas_client_commits_aborts_and_is_fenced(kind: str, version: str) -> None:
    with address_of(kind) as address:
        printed = java("Transactions.java", address, client=version).splitlines()

    assert printed == [
        "committed [value0, value2]",
        "all [value0, value1, value2, value3]",
        "fenced ProducerFencedException",
        "committed [value0, value2, last]",
        "offset 2",
    ]


@pytest.mark.parametrize("program", ["Transform.java", "transform.go"])
def test_killed_transformations_write_each_record_once(tmp_path: Path, program: str) -> None:
    try:
        command = (
            java_command(program)
            if program.endswith(".java")
            else [str(compiled(FOLDER / program, FRANZ_GO))]
        )
    except Unavailable as error:
        unavailable(str(error))
    assert sorted(transform_and_kill(command, tmp_path)) == list(range(COUNT))
