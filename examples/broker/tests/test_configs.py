"""The configuration of topics: accepted values, changes, and effects; on virtual time."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from purgatory_broker.batches import HEADER, Batch, iter_records, read_payload
from purgatory_broker.configs import CONFIGS
from raw import Direct, fetch_fields, make_batch, new_topic, produce_fields, running_broker

README = Path(__file__).parents[1] / "README.md"
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


async def create(client: Direct, name: str = "t", **configs: str) -> tuple[str, str | None]:
    values = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    wanted = new_topic(name, configs=values)
    (topic,) = (await client.ask("create_topics", topics=wanted)).topics
    return topic.error_code.name, topic.error_message


async def alter(
    client: Direct, *changes: tuple[str, int, str | None], resource: int = TOPIC
) -> tuple[str, str | None]:
    configs = [
        {"name": name, "config_operation": operation, "value": value}
        for name, operation, value in changes
    ]
    asked = {"resource_type": resource, "resource_name": "t", "configs": configs}
    (altered,) = (await client.ask("incremental_alter_configs", resources=[asked])).responses
    return altered.error_code.name, altered.error_message


async def shown(client: Direct) -> dict[str, str]:
    """The settings that differ from their defaults."""
    resource = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None}
    (described,) = (await client.ask("describe_configs", resources=[resource])).results
    assert {config.name for config in described.configs} == set(CONFIGS)
    return {config.name: config.value for config in described.configs if config.config_source == 1}


async def send(client: Direct, *values: bytes | None, **options: Any) -> tuple[str, int]:
    (outcome,) = await client.produce("t", make_batch(*values, **options))
    return outcome


async def span(client: Direct) -> tuple[int, int]:
    """The first offset and the next one."""
    return (await client.list_offset("t", -2))[0], (await client.list_offset("t", -1))[0]


INVALID = "Invalid value {} for configuration {}: "
PROBLEMS = [
    ("retention.ms", "soon", INVALID.format("soon", "retention.ms") + "Not a number of type LONG"),
    ("retention.ms", "-2", INVALID.format("-2", "retention.ms") + "Value must be at least -1"),
    ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
    ("max.message.bytes", "2147483648", "Not a number of type INT"),
    ("max.message.bytes", "1_000", "Not a number of type INT"),
    ("min.insync.replicas", "0", "Value must be at least 1"),
    ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
    ("compression.lz4.level", "18", "Value must be no more than 17"),
    ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
    ("min.cleanable.dirty.ratio", "x", "Not a number of type DOUBLE"),
    ("preallocate", "yes", "Expected value to be either true or false"),
    ("cleanup.policy", "delete,shred", "String must be one of: compact, delete"),
    ("message.timestamp.type", "logappendtime", "must be one of: CreateTime, LogAppendTime"),
    ("leader.replication.throttled.replicas", "all", "'*' or a list of partition:replica"),
    ("remote.storage.enable", "true", "Tiered Storage functionality is disabled in the broker."),
    ("no.such", "1", "Unknown topic config name: no.such"),
    ("min.compaction.lag.ms", "10", "min.compaction.lag.ms (10) > max.compaction.lag.ms (5)"),
]


@pytest.mark.parametrize(("name", "value", "problem"), PROBLEMS)
async def test_values_are_checked_as_by_kafka(
    client: Direct, name: str, value: str, problem: str
) -> None:
    code, message = await create(client, **{"max.compaction.lag.ms": "5", name: value})
    assert code == "invalid_config" and problem in str(message)


async def test_single_values_are_altered(client: Direct) -> None:
    await create(client, retention_ms="5")
    changes = ("retention.ms", SET, "7"), ("cleanup.policy", APPEND, "compact")
    assert await alter(client, *changes) == ("none", None)
    assert await shown(client) == {"retention.ms": "7", "cleanup.policy": "delete,compact"}
    changes = ("retention.ms", DELETE, None), ("cleanup.policy", SUBTRACT, "delete")
    assert await alter(client, *changes) == ("none", None)
    assert await shown(client) == {"cleanup.policy": "compact"}
    for change in (
        ("retention.ms", SET, "x"),
        ("retention.ms", SET, None),
        ("retention.ms", APPEND, "1"),
        ("no.such", SET, "1"),
        ("no.such", DELETE, None),
    ):
        code, _ = await alter(client, change, ("max.message.bytes", SET, "1"))
        assert code == "invalid_config", change
    assert (await alter(client, ("retention.ms", 9, "1")))[0] == "invalid_request"
    code, _ = await alter(client, ("num.partitions", SET, "1"), resource=BROKER)
    assert code == "invalid_request"
    assert await shown(client) == {"cleanup.policy": "compact"}


async def test_the_whole_configuration_is_altered_or_only_checked(client: Direct) -> None:
    await create(client, retention_ms="5", segment_ms="7")
    for is_only_checked, expected in (
        (True, {"retention.ms": "5", "segment.ms": "7"}),
        (False, {"retention.ms": "6"}),
    ):
        asked = {"resource_type": TOPIC, "resource_name": "t"}
        asked |= {"configs": [{"name": "retention.ms", "value": "6"}]}
        fields = {"resources": [asked], "validate_only": is_only_checked}
        (altered,) = (await client.ask("alter_configs", **fields)).responses
        assert altered.error_code.name == "none"
        assert await shown(client) == expected


async def test_what_was_altered_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running_broker([], directory=tmp_path) as client:
        await create(client)
        await alter(client, ("max.message.bytes", SET, "100"))
    async with running_broker([], directory=tmp_path) as client:
        assert await shown(client) == {"max.message.bytes": "100"}
        assert await send(client, b"x" * 100) == ("message_too_large", -1)


async def test_the_log_says_what_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    async with running_broker([]) as client:
        await create(client, segment_ms="100", compression_type="producer", retention_ms="5")
        await alter(client, ("flush.ms", SET, "1"))
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "topic t: segment.ms=100 has no effect here",
        "topic t: flush.ms=1 has no effect here",
    ]


def test_the_readme_has_a_row_for_each_name() -> None:
    for first, has_effect in (("acts", True), ("accepted", False)):
        row = re.search(rf"^\| {first}[^|]*\|(.*)$", README.read_text(), re.MULTILINE)
        assert row is not None
        assert set(re.findall(r"`([\w.]+)`", row[1])) == {
            name for name, each in CONFIGS.items() if each.has_effect is has_effect
        }


async def test_a_compacted_topic_refuses_records_without_a_key(client: Direct) -> None:
    await create(client, cleanup_policy="compact,delete")
    for options in ({}, {"attributes": 1, "compress": gzip.compress}):
        assert await send(client, b"v", **options) == ("invalid_record", -1)
        assert (await send(client, b"v", key=b"k", **options))[0] == "none"


async def test_records_get_the_time_of_the_append(client: Direct) -> None:
    await create(client, message_timestamp_type="LogAppendTime")
    response = await client.ask("produce", **produce_fields("t", make_batch(b"a", b"b", time=5)))
    appended = response.responses[0].partition_responses[0].log_append_time
    now = client.broker.clock.milliseconds()
    assert now - 60_000 < appended.timestamp() * 1000 <= now + 1
    milliseconds = round(appended.timestamp() * 1000)
    found = [await client.list_offset("t", time) for time in (6, -3, now + 60_000)]
    assert found == [(0, milliseconds), (0, milliseconds), (-1, -1)]


async def test_times_too_far_away_are_refused(client: Direct) -> None:
    await create(client, message_timestamp_before_max_ms="60000")
    now = client.broker.clock.milliseconds()
    assert await send(client, b"v", time=now + 7_200_000) == ("invalid_timestamp", -1)
    assert await send(client, b"v", time=now - 120_000) == ("invalid_timestamp", -1)
    assert await send(client, b"v", time=now) == ("none", 0)


async def keys(client: Direct, offset: int = 0) -> list[tuple[int, bytes | None]]:
    """Offsets and keys that a consumer reads from an offset on."""
    response = await client.ask("fetch", **fetch_fields("t", offset))
    data, found = response.responses[0].partitions[0].records or b"", []
    while data:
        batch = Batch(*HEADER.unpack_from(data))
        records = iter_records(read_payload(data, batch), batch)
        found += [(record.offset, record.key) for record in records if record.offset >= offset]
        data = data[batch.size :]
    return found


COMPACT = {"cleanup_policy": "compact"}
SIZE = str(2 * len(make_batch(b"v", key=b"a")))
CLEANED = [
    ({"retention_ms": "60000"}, "abc", (120, 90, 30), "c", ""),
    ({"retention_ms": "0"}, "a", (None,), "a", "a"),
    ({"retention_ms": "-1", "retention_bytes": SIZE}, "abcde", (0,) * 5, "de", "de"),
    (COMPACT | {"min_compaction_lag_ms": "60000"}, "aa", (0, 0), "aa", "a"),
    (COMPACT | {"delete_retention_ms": "60000"}, "aAb", (0, 0, 0), "ab", "b"),
]
"""Keys, of which capitals have no value, and the ages of their records in seconds; keys that are
left at once, and a minute later."""


@pytest.mark.parametrize(("configs", "given", "ages", "soon", "later"), CLEANED)
async def test_cleaner_keeps_what_the_configuration_says(
    client: Direct,
    configs: dict[str, str],
    given: str,
    ages: tuple[int | None],
    soon: str,
    later: str,
) -> None:
    await create(client, **configs)
    now = client.broker.clock.milliseconds()
    for key, age in zip(given, ages, strict=True):
        value, time = None if key.isupper() else b"v", -1 if age is None else now - 1000 * age
        await send(client, value, key=key.lower().encode(), time=time)
    for expected in (soon, later):
        client.broker.cleaner.clean()
        start, end = await span(client)
        found = b"".join(key or b"" for _, key in await keys(client, start))
        assert (found.decode(), end) == (expected, len(given))
        client.broker.clock.offset += 61


@pytest.mark.parametrize("is_stored", [False, True])
async def test_compaction_keeps_the_last_record_of_keys(tmp_path: Path, is_stored: bool) -> None:
    settings = {"directory": tmp_path} if is_stored else {}
    async with running_broker([], **settings) as client:
        await create(client, cleanup_policy="compact")
        for key in (b"a", b"b", b"a", b"c", b"b"):
            await send(client, b"1", b"2", key=key, attributes=1, compress=gzip.compress)
        client.broker.cleaner.clean()
        assert await keys(client) == [(5, b"a"), (7, b"c"), (9, b"b")]
        assert await keys(client, 6) == [(7, b"c"), (9, b"b")]
        assert await span(client) == (0, 10)
        assert await send(client, b"3", key=b"c") == ("none", 10)
        client.broker.cleaner.clean()
        assert await keys(client) == [(5, b"a"), (9, b"b"), (10, b"c")]
    if is_stored:
        async with running_broker([], **settings) as client:
            assert await keys(client) == [(5, b"a"), (9, b"b"), (10, b"c")]
            assert await span(client) == (0, 11)
