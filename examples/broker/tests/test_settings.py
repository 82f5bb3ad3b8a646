"""The settings of a broker are checked when they are given."""

from pathlib import Path
from typing import Any

import pytest
from purgatory_broker.settings import Settings


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("replicas", 0, "replicas must be 1 to 100, got 0"),
        ("replicas", 101, "replicas must be 1 to 100, got 101"),
        ("partitions", "3", "partitions must be an integer, got '3'"),
        ("partitions", True, "partitions must be an integer, got True"),
        ("partitions", 10_001, "partitions must be 1 to 10000, got 10001"),
        ("rebalance_delay", -1, "rebalance_delay must be zero or more seconds, got -1"),
        ("replica_lag", float("nan"), "replica_lag must be zero or more seconds, got nan"),
        ("replica_timeout", float("inf"), "replica_timeout must be zero or more seconds, got inf"),
        ("clean_interval", None, "clean_interval must be a number of seconds, got None"),
        ("clean_interval", 0, "clean_interval must be more than zero seconds, got 0"),
        ("min_session_timeout", "1s", "min_session_timeout must be a number of seconds, got '1s'"),
        ("fsync", 1, "fsync must be True or False, got 1"),
        ("directory", "data", "directory must be a pathlib.Path or None, got 'data'"),
    ],
)
def test_bad_value_is_refused_in_words(name: str, value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        Settings(**{name: value})
    assert str(error.value) == message


def test_good_values_are_taken() -> None:
    settings = Settings(Path("data"), replicas=3, rebalance_delay=0, replica_timeout=1)
    assert (settings.replicas, settings.rebalance_delay) == (3, 0)
