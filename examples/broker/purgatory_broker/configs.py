"""The configuration of topics. `min.insync.replicas` and `max.message.bytes` have an effect; the rest is stored and shown."""

from collections.abc import Mapping
from typing import Final

from .responses import ErrorCode, Response, raise_if

# By type, which is a number in the protocol: each name and its default.
TABLE: Final = {
    1: "preallocate=false unclean.leader.election.enable=false",  # boolean
    2: "compression.type=producer message.timestamp.type=CreateTime",  # string
    3: """min.insync.replicas=1 max.message.bytes=1048588 index.interval.bytes=4096 segment.bytes=1073741824
        segment.index.bytes=10485760""",  # int
    5: """delete.retention.ms=86400000 file.delete.delay.ms=60000 flush.messages=9223372036854775807
        flush.ms=9223372036854775807 max.compaction.lag.ms=9223372036854775807 min.compaction.lag.ms=0 retention.bytes=-1
        retention.ms=-1 segment.jitter.ms=0 segment.ms=604800000""",  # long
    6: "min.cleanable.dirty.ratio=0.5",  # double
    7: "cleanup.policy=delete",  # list
}
TYPES: Final = {pair.partition("=")[0]: number for number, pairs in TABLE.items() for pair in pairs.split()}
DEFAULTS: Final = dict(pair.split("=") for pairs in TABLE.values() for pair in pairs.split())
WHOLE_NUMBERS: Final = ("min.insync.replicas", "max.message.bytes")
STRING, DEFAULT_CONFIG, TOPIC_CONFIG = 2, 5, 1  # a type, and two sources of a value


def validate(configs: Mapping[str, str]) -> None:
    """Raises `ApiError` if one of them cannot be set for a topic."""
    for name, value in configs.items():
        is_wrong = name not in DEFAULTS or (name in WHOLE_NUMBERS and not value.isdecimal())
        raise_if(is_wrong, ErrorCode.invalid_config, f"{name}={value!r} cannot be set for a topic")


def config_entries(defaults: Mapping[str, object], configs: Mapping[str, str]) -> list[Response]:
    """A configuration as Kafka's tools show it."""
    return [
        {
            "name": name,
            "value": str(configs.get(name, default)),
            "config_source": TOPIC_CONFIG if name in configs else DEFAULT_CONFIG,
            "config_type": TYPES.get(name, STRING),
        }
        for name, default in defaults.items()
    ]
