"""Clients that are not Python's, unmodified: Java's own, in two versions, and kafkajs. On both brokers they see the same."""

import json
from collections.abc import Iterator

import pytest
from brokers import KINDS, running
from maven import Unavailable
from other_clients import JAVA_CLIENTS, java, kafkajs
from requirements import unavailable

pytestmark = pytest.mark.slow


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    try:
        with running(request.param) as broker:
            yield broker.address
    except Unavailable as error:
        unavailable(str(error))


@pytest.mark.parametrize("version", JAVA_CLIENTS)
def test_javas_client_administers_produces_and_consumes_in_groups(address: str, version: str) -> None:
    try:
        said = java("Client.java", address, client=version).splitlines()
    except Unavailable as error:
        unavailable(str(error))

    assert said == [
        "partitions 3",
        "ends 1000",
        "first half 500",
        "second half 500",
        "groups [halves]",
        "topics []",
    ]


def test_kafkajs_administers_produces_and_consumes_in_groups(address: str) -> None:
    try:
        seen = json.loads(kafkajs("client.js", address))
    except Unavailable as error:
        unavailable(str(error))

    assert seen == {
        "created": True,
        "partitions": 3,
        "first": 500,
        "second": 500,
        "groups": ["readers"],
        "ends": 1000,
    }
