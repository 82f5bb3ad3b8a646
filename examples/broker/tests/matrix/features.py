"""The features of the Python clients: scenarios over their adapters in this folder. The programs in
other languages follow them.

    python by_aiokafka.py ADDRESS FEATURE

A program ends with 0 if its client behaves as expected. Otherwise it prints the error in its
words. Topics with several partitions are there before. Instead of a feature, `transform` is what
`test_exactly_once` kills.

Options have aiokafka's names. A client's `produce(topic, **options)` sends `RECORDS` and returns
their offsets; `transact(topic, group, *are_committed)` sends a record and an offset from 10 on in a
transaction for each.
`member(topic, group, **options)` is a consumer from the first record on: `take(count)` returns values
and headers, `share()` the assigned partitions, `rebalances` counts their assignments.
"""

import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

TIMEOUT: Final = 60.0
"""How long a client may wait for what has to come, in seconds."""
REFUSAL_TIMEOUT: Final = 8.0
"""How long a client may try what is refused, in seconds, where it does not give up by itself."""
START: Final = 1_700_000_000_000
"""The time of the first record where times matter, in milliseconds; the others follow at intervals
of a second."""
VALUES: Final = [f"{number} ".encode() * 20 for number in range(50)]
RECORDS: Final[list[dict[str, Any]]] = [
    {
        "value": value,
        "partition": 0,
        "headers": [("number", b"%d" % number)],
        "timestamp_ms": START + 1000 * number,
    }
    for number, value in enumerate(VALUES)
]
"""`VALUES` as arguments of aiokafka's `send`; confluent-kafka says `timestamp`."""
LOGIN: Final = {
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "me",
    "sasl_plain_password": "secret",
}
CODECS: Final = ("gzip", "snappy", "lz4", "zstd")


def until(is_so: Callable[[], bool]) -> None:
    """Calls a condition, which lets its client work meanwhile, until it is true."""
    deadline = time.monotonic() + TIMEOUT
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {TIMEOUT:.0f} s")
        time.sleep(0.01)


def expect(found: object, expected: object) -> None:
    """Raises if they are not equal."""
    if found != expected:
        raise ValueError(f"{found!r} instead of {expected!r}")


def read(client: Any, topic: str, count: int, **options: Any) -> list[Any]:
    one = client.member(topic, **options)
    found = one.take(count)
    one.close()
    return found


def values(records: list[tuple[bytes, list[Any]]]) -> list[bytes]:
    return [value for value, _ in records]


def round_trip(client: Any, topic: str, **options: Any) -> None:
    expect(client.produce(topic, **options), list(range(len(VALUES))))
    expect(values(read(client, topic, len(VALUES))), VALUES)


def headers(client: Any) -> None:
    client.produce("headers")
    found = [headers for _, headers in read(client, "headers", 2)]
    expect(found, [[("number", b"0")], [("number", b"1")]])


def commit(client: Any) -> None:
    client.produce("commit")
    for half in VALUES[:25], VALUES[25:]:
        one = client.member("commit", "commit")
        expect(values(one.take(25)), half)
        one.commit()
        one.close()


def shares(*members: Any) -> list[int]:
    return [len(member.share()) for member in members]


def group(client: Any) -> None:
    one = client.member("group", "group")
    until(lambda: shares(one) == [4])
    two = client.member("group", "group")
    until(lambda: shares(one, two) == [2, 2])
    two.close()
    until(lambda: shares(one) == [4])
    one.close()


def static(client: Any) -> None:
    one = client.member("static", "static", group_instance_id="one")
    two = client.member("static", "static", group_instance_id="two")
    until(lambda: shares(one, two) == [1, 1])
    before, mine = one.rebalances, two.share()
    two.close()
    two = client.member("static", "static", group_instance_id="two")
    until(lambda: shares(one, two) == [1, 1])
    expect((two.share(), one.rebalances), (mine, before))
    one.close()
    two.close()


def times(client: Any) -> None:
    client.produce("times")
    one = client.member("times")
    expect([one.offset_at("times", START + at) for at in (0, 1500, 49_000)], [0, 2, 49])
    one.close()


def transactions(client: Any) -> None:
    client.transact("transactions", "transactions", True, False, True)
    records = read(client, "transactions", 2, isolation_level="read_committed")
    expect(values(records), [b"0", b"2"])
    one = client.member("transactions", "transactions")
    expect(one.committed("transactions"), 12)
    one.close()


def new_group(client: Any) -> None:
    client.produce("new-group")
    read(client, "new-group", len(VALUES), group="new-group", group_protocol="consumer")


SCENARIOS: Final[dict[str, Callable[[Any], None]]] = {
    "acks": partial(round_trip, topic="acks"),
    **{codec: partial(round_trip, topic=codec, compression_type=codec) for codec in CODECS},
    "headers": headers,
    "commit": commit,
    "group": group,
    "static": static,
    "times": times,
    "idempotence": partial(round_trip, topic="idempotence", enable_idempotence=True),
    "transactions": transactions,
    "topics": lambda client: client.topics(),
    "configs": lambda client: client.configs(),
    "delete-records": lambda client: client.delete_records(),
    "new-group": new_group,
    "tls": lambda client: client.connect(security_protocol="SSL", **client.tls),
    "sasl": lambda client: client.connect(security_protocol="SASL_PLAINTEXT", **LOGIN),
    "transform": lambda client: client.transform(),
}


def run(client: Callable[[str], Any]) -> None:
    """The program: runs the feature that the command line names."""
    address, name = sys.argv[1:]
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    try:
        SCENARIOS[name](client(address))
    except Exception as error:
        name, text = type(error).__name__, str(error)
        print(text if text.startswith(name) else f"{name}: {text}")
        sys.exit(1)
