"""What can be set for a topic. `min.insync.replicas` and `max.message.bytes` are heeded; the rest is kept and shown."""

from collections.abc import Mapping
from typing import Final

from .answers import Answer, ErrorCode, refuse_if

# By kind, which is a number in the protocol: each name, and the value that it has otherwise.
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
KINDS: Final = {pair.partition("=")[0]: kind for kind, pairs in TABLE.items() for pair in pairs.split()}
DEFAULTS: Final = dict(pair.split("=") for pairs in TABLE.values() for pair in pairs.split())
WHOLE_NUMBERS: Final = ("min.insync.replicas", "max.message.bytes")
STRING, DEFAULT, SET_FOR_TOPIC = 2, 5, 1  # a kind, and where a value comes from


def check(configs: Mapping[str, str]) -> None:
    """Raises `Refused` if one of them cannot be set for a topic."""
    for name, value in configs.items():
        is_wrong = name not in DEFAULTS or (name in WHOLE_NUMBERS and not value.isdecimal())
        refuse_if(is_wrong, ErrorCode.invalid_config, f"{name}={value!r} cannot be set for a topic")


def described(values: Mapping[str, object], chosen: Mapping[str, str]) -> list[Answer]:
    """Each of some values, or the one that was chosen for it, as Kafka's tools show it."""
    return [
        {
            "name": name,
            "value": str(chosen.get(name, value)),
            "config_source": SET_FOR_TOPIC if name in chosen else DEFAULT,
            "config_type": KINDS.get(name, STRING),
        }
        for name, value in values.items()
    ]
