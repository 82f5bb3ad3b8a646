"""The configuration of topics: the names, types, defaults and bounds of Kafka 4.3, and the settings
with an effect here.

Settings without effect are accepted as by Kafka, and logged as such.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from .logs import printable
from .responses import ApiError, ErrorCode, Response, raise_if

logger: Final = logging.getLogger("purgatory_broker")

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7  # types, as numbers in the protocol
DEFAULT_CONFIG, TOPIC_CONFIG = 5, 1  # sources of a value
SET, DELETE, APPEND, SUBTRACT = range(4)  # operations of IncrementalAlterConfigs
NUMBERS: Final = {INT: ("INT", 31), LONG: ("LONG", 63)}
NEVER: Final = 2**63 - 1  # milliseconds
NO_TIERED_STORAGE: Final = (
    "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with "
    "remote log storage."
)

Check = Callable[[float], str | None]
"""The error for a number, in Kafka's words."""


class Config(NamedTuple):
    """One name.

    Attributes:
        check: check of a number; for a text or a list, its possible words.
    """

    type: int
    default: str
    check: Check | tuple[str, ...] | None = None
    has_effect: bool = False


def between(least: float, most: float | None = None) -> Check:
    """A check of bounds."""

    def check(value: float) -> str | None:
        if value < least:
            return f"Value must be at least {least}"
        return f"Value must be no more than {most}" if most is not None and value > most else None

    return check


def gzip_level(value: float) -> str | None:
    """A check of the level of gzip."""
    return (
        None if value == -1 or 1 <= value <= 9 else "Value must be between 1 and 9 or equal to -1"
    )


POSITIVE, AT_LEAST_ZERO = between(1), between(0)
CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

CONFIGS: Final[Mapping[str, Config]] = {
    # With an effect here
    "cleanup.policy": Config(LIST, "delete", ("compact", "delete"), has_effect=True),
    "delete.retention.ms": Config(LONG, "86400000", AT_LEAST_ZERO, has_effect=True),
    "max.message.bytes": Config(INT, "1048588", AT_LEAST_ZERO, has_effect=True),
    "message.timestamp.after.max.ms": Config(LONG, "3600000", AT_LEAST_ZERO, has_effect=True),
    "message.timestamp.before.max.ms": Config(LONG, str(NEVER), AT_LEAST_ZERO, has_effect=True),
    "message.timestamp.type": Config(
        STRING, "CreateTime", ("CreateTime", "LogAppendTime"), has_effect=True
    ),
    "min.compaction.lag.ms": Config(LONG, "0", AT_LEAST_ZERO, has_effect=True),
    "min.insync.replicas": Config(INT, "1", POSITIVE, has_effect=True),
    "retention.bytes": Config(LONG, "-1", has_effect=True),
    "retention.ms": Config(LONG, "604800000", between(-1), has_effect=True),
    # Without an effect here
    "compression.gzip.level": Config(INT, "-1", gzip_level),
    "compression.lz4.level": Config(INT, "9", between(1, 17)),
    "compression.type": Config(STRING, "producer", CODECS),
    "compression.zstd.level": Config(INT, "3", between(-131072, 22)),
    "file.delete.delay.ms": Config(LONG, "60000", AT_LEAST_ZERO),
    "flush.messages": Config(LONG, str(NEVER), POSITIVE),
    "flush.ms": Config(LONG, str(NEVER), AT_LEAST_ZERO),
    "follower.replication.throttled.replicas": Config(LIST, ""),
    "index.interval.bytes": Config(INT, "4096", AT_LEAST_ZERO),
    "leader.replication.throttled.replicas": Config(LIST, ""),
    "local.retention.bytes": Config(LONG, "-2", between(-2)),
    "local.retention.ms": Config(LONG, "-2", between(-2)),
    "max.compaction.lag.ms": Config(LONG, str(NEVER), POSITIVE),
    "min.cleanable.dirty.ratio": Config(DOUBLE, "0.5", between(0, 1)),
    "preallocate": Config(BOOLEAN, "false"),
    "remote.log.copy.disable": Config(BOOLEAN, "false"),
    "remote.log.delete.on.disable": Config(BOOLEAN, "false"),
    "remote.storage.enable": Config(BOOLEAN, "false"),
    "segment.bytes": Config(INT, "1073741824", between(1_048_576)),
    "segment.index.bytes": Config(INT, "10485760", between(4)),
    "segment.jitter.ms": Config(LONG, "0", AT_LEAST_ZERO),
    "segment.ms": Config(LONG, "604800000", POSITIVE),
    "unclean.leader.election.enable": Config(BOOLEAN, "false"),
}
DEFAULTS: Final = {name: config.default for name, config in CONFIGS.items()}
THROTTLED: Final = re.compile(r"\*|\d+:\d+(, *\d+:\d+)*|")


def words(value: str) -> list[str]:
    """The items of a list."""
    return [word.strip() for word in value.split(",")] if value.strip() else []


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicConfig:
    """A topic's settings with an effect. Times are in milliseconds, sizes in bytes; -1 is no limit.

    Attributes:
        deletes, compacts: whether `cleanup.policy` names it.
        takes_append_time: `message.timestamp.type` is LogAppendTime.
    """

    deletes: bool
    compacts: bool
    delete_retention: int
    max_message_size: int
    max_time_after: int
    max_time_before: int
    min_compaction_lag: int
    min_insync_replicas: int
    retention_bytes: int
    retention: int
    takes_append_time: bool

    @classmethod
    def parse(cls, configs: Mapping[str, str]) -> "TopicConfig":
        """A configuration with these values, which are valid, and defaults for the rest."""
        values = DEFAULTS | dict(configs)
        policy = words(values["cleanup.policy"])
        return cls(
            deletes="delete" in policy,
            compacts="compact" in policy,
            delete_retention=int(values["delete.retention.ms"]),
            max_message_size=int(values["max.message.bytes"]),
            max_time_after=int(values["message.timestamp.after.max.ms"]),
            max_time_before=int(values["message.timestamp.before.max.ms"]),
            min_compaction_lag=int(values["min.compaction.lag.ms"]),
            min_insync_replicas=int(values["min.insync.replicas"]),
            retention_bytes=int(values["retention.bytes"]),
            retention=int(values["retention.ms"]),
            takes_append_time=values["message.timestamp.type"].strip() == "LogAppendTime",
        )


def validate(configs: Mapping[str, str]) -> None:
    """Raises `ApiError` if a setting is not possible for a topic; the messages are Kafka's."""
    for name, value in configs.items():
        raise_if(
            name not in CONFIGS, ErrorCode.invalid_config, f"Unknown topic config name: {name}"
        )
        if (problem := _problem(CONFIGS[name], value.strip())) is not None:
            message = f"Invalid value {value.strip()} for configuration {name}: {problem}"
            raise ApiError(ErrorCode.invalid_config, message)
    values = DEFAULTS | dict(configs)
    raise_if(
        values["remote.storage.enable"].strip().lower() == "true",
        ErrorCode.invalid_config,
        NO_TIERED_STORAGE,
    )
    least, most = int(values["min.compaction.lag.ms"]), int(values["max.compaction.lag.ms"])
    message = (
        f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms "
        f"({most})"
    )
    raise_if(least > most, ErrorCode.invalid_config, message)


def _problem(config: Config, value: str) -> str | None:
    """The error for a value, or None."""
    if config.type == BOOLEAN:
        return (
            None
            if value.lower() in ("true", "false")
            else "Expected value to be either true or false"
        )
    if isinstance(config.check, tuple):
        is_possible = set(words(value) if config.type == LIST else [value]) <= set(config.check)
        return None if is_possible else f"String must be one of: {', '.join(config.check)}"
    if config.type == LIST:
        return (
            None
            if THROTTLED.fullmatch(value)
            else "it has to be '*' or a list of partition:replica"
        )
    number = _number(config.type, value)
    if number is None:
        return (
            f"Not a number of type {'DOUBLE' if config.type == DOUBLE else NUMBERS[config.type][0]}"
        )
    return config.check(number) if config.check is not None else None


def _number(kind: int, value: str) -> float | None:
    """Parses a number; None for any other text."""
    if kind == DOUBLE:
        return (
            float(value) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value) else None
        )
    if not re.fullmatch(r"[+-]?\d{1,19}", value):
        return None
    _, bits = NUMBERS[kind]
    return number if -(2**bits) <= (number := int(value)) < 2**bits else None


def warn_of_no_effect(topic: str, configs: Mapping[str, str]) -> None:
    """Logs which of these values have no effect."""
    for name, value in configs.items():
        if not CONFIGS[name].has_effect and value.strip() != CONFIGS[name].default:
            logger.warning("topic %s: %s=%s has no effect here", topic, name, printable(value))


def altered(
    configs: Mapping[str, str], name: str, operation: int, value: str | None
) -> dict[str, str]:
    """A configuration after one operation of IncrementalAlterConfigs.

    Raises:
        ApiError: there is no such operation on this name.
    """
    raise_if(name not in CONFIGS, ErrorCode.invalid_config, f"Unknown topic config name: {name}")
    if operation == DELETE:
        return {other: known for other, known in configs.items() if other != name}
    raise_if(
        operation not in (SET, APPEND, SUBTRACT),
        ErrorCode.invalid_request,
        f"there is no operation {operation}",
    )
    raise_if(value is None, ErrorCode.invalid_config, f"Null value not supported for : {name}")
    if operation == SET:
        return {**configs, name: value or ""}
    not_a_list = f"Can't APPEND or SUBTRACT to key {name} because its type is not LIST."
    raise_if(CONFIGS[name].type != LIST, ErrorCode.invalid_config, not_a_list)
    before, given = words(configs.get(name, DEFAULTS[name])), words(value or "")
    if operation == APPEND:
        now = before + [word for word in given if word not in before]
    else:
        now = [word for word in before if word not in given]
    return {**configs, name: ",".join(now)}


def config_entries(defaults: Mapping[str, object], configs: Mapping[str, str]) -> list[Response]:
    """A configuration as Kafka's tools show it."""
    return [
        {
            "name": name,
            "value": str(configs.get(name, default)),
            "config_source": TOPIC_CONFIG if name in configs else DEFAULT_CONFIG,
            "config_type": CONFIGS[name].type if name in CONFIGS else STRING,
        }
        for name, default in defaults.items()
    ]
