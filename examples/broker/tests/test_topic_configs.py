"""The values that the configuration of a topic takes, on the broker of `examples/broker` and on
Kafka itself."""

from datetime import timedelta

import pytest
from brokers import KINDS, running
from maven import Unavailable
from purgatory_broker.configs import CONFIGS
from raw import Raw, new_topic
from requirements import unavailable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # a busy machine takes minutes to start JVMs

NUMBERS = (
    "-3 -2 -1 0 1 2 4 9 10 17 18 22 23 1048575 1048576 2147483647 2147483648 "
    "9223372036854775807 9223372036854775808 0.5 1.5"
)
WORDS = (
    "TRUE false gzip producer uncompressed CreateTime LogAppendTime delete compact "
    "compact,delete delete,delete none * 0:0"
)
VALUES = [*NUMBERS.split(), *WORDS.split(), "", " 5 ", "delete, compact"]


def outcomes(address: str) -> dict[tuple[str, str], str]:
    """The error for each name and value, of topics that are not created."""
    found = {}
    with Raw(address) as client:
        for name in [*CONFIGS, "no.such.name"]:
            wanted = [
                new_topic(f"t{number}", configs=[{"name": name, "value": value}])[0]
                for number, value in enumerate(VALUES)
            ]
            fields = {"topics": wanted, "timeout": timedelta(seconds=60)}
            response = client.ask("create_topics", validate_only=True, **fields)
            found |= {
                (name, VALUES[int(topic.name[1:])]): topic.error_code.name
                for topic in response.topics
            }
    return found


def defaults(address: str) -> dict[str, str]:
    """The value of each name, of a topic without a configuration."""
    with Raw(address) as client:
        fields = {"topics": new_topic(), "timeout": timedelta(seconds=60)}
        (created,) = client.ask("create_topics", **fields).topics
        return {config.name: config.value for config in created.configs or ()}


def test_both_brokers_share_names_defaults_and_accepted_values() -> None:
    try:
        ours, kafkas = ([], [])
        for kind, found in zip(KINDS, (ours, kafkas), strict=True):
            with running(kind) as address:
                found += [outcomes(address), defaults(address)]
    except Unavailable as error:
        unavailable(str(error))
    assert ours == kafkas
    assert len(ours[0]) == len(VALUES) * (len(CONFIGS) + 1)
