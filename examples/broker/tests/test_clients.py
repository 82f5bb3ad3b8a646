"""Java's client against the broker, and against Kafka itself: its column of `FEATURES.md`.

Each cell is a run of a program, which checks its results.
"""

import subprocess
import tempfile
from collections.abc import Iterable
from datetime import timedelta

import pytest
from brokers import EXAMPLE, TIMEOUT, running
from maven import Unavailable
from programs import JAVA_CLIENTS, command
from raw import Raw, fetch_fields, new_topic
from requirements import unavailable

PAGE = (EXAMPLE / "FEATURES.md").read_text("utf-8")
CODECS = ("gzip", "snappy", "lz4", "zstd")
"""In the order of their numbers in the attributes of a batch, from 1 on."""
FEATURES = (
    *("acks", *CODECS, "headers", "commit", "group", "static", "times", "idempotence"),
    *("transactions", "topics", "configs", "delete-records", "delete-offsets"),
    *("new-group", "tls", "sasl"),
)
"""What the program calls the rows of the page, in their order."""
REFUSALS = {
    "new-group": "the group protocol of KIP-848",
    "tls": "the client begins with TLS (security.protocol=SSL or SASL_SSL), this port is PLAINTEXT",
    "sasl": "asks for SASL/PLAIN, and this port is PLAINTEXT: security.protocol is to be PLAINTEXT",
}
"""A part of the broker's log."""
OLD_JAVA = ["acks", "commit", "group", "idempotence", "transactions", "topics", "new-group"]
PARTITIONS = {"group": 4, "static": 2, "configs": 1, "delete-offsets": 1}
"""Topics that are there before."""


def on_the_page() -> dict[str, str]:
    """The client's column, the last of the first table."""
    table = PAGE[PAGE.index("| |") :].partition("\n\n")[0]
    name, _, *cells = (row.strip("| ").rpartition("|")[2].strip() for row in table.splitlines())
    assert name == f"Java {JAVA_CLIENTS[-1]}"
    return dict(zip(FEATURES, cells, strict=True))


def outcome(words: list[str], address: str, feature: str) -> str:
    """How the program ends, in the words of the page, or with its error."""
    ended = subprocess.run(
        [*words, address, feature], capture_output=True, text=True, check=False, timeout=TIMEOUT
    )
    printed = ended.stdout.strip()
    if ended.returncode == 0:
        if feature not in CODECS or codec_of(address, feature) == feature:
            return "works"
        return f"the batches are compressed by {codec_of(address, feature)}"
    return "refused" if feature in REFUSALS and printed else printed + ended.stderr


def codec_of(address: str, topic: str) -> str:
    """How the first batch of a topic is compressed."""
    with Raw(address) as client:
        records = client.ask("fetch", **fetch_fields(topic, 0)).responses[0].partitions[0].records
    return ("none", *CODECS)[records[22] & 7]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a busy machine takes minutes to start JVMs
@pytest.mark.parametrize(
    ("kind", "version", "features"),
    [
        ("ours", JAVA_CLIENTS[-1], FEATURES),
        ("Kafka", JAVA_CLIENTS[-1], FEATURES),
        ("ours", JAVA_CLIENTS[0], OLD_JAVA),
    ],
    ids=["ours", "Kafka", "old client"],
)
def test_each_feature_is_as_on_the_page(kind: str, version: str, features: Iterable[str]) -> None:
    try:
        words = command("Java", version)
        with tempfile.TemporaryFile("w+") as log, running(kind, log=log) as address:
            with Raw(address) as raw:
                wanted = [each for named in PARTITIONS.items() for each in new_topic(*named)]
                raw.ask("create_topics", topics=wanted, timeout=timedelta(seconds=TIMEOUT))
            found = {feature: outcome(words, address, feature) for feature in features}
            log.seek(0)
            logged = log.read()
    except Unavailable as error:
        unavailable(str(error))
    page = on_the_page()
    assert found == {feature: page[feature] for feature in features}
    for feature, text in REFUSALS.items():
        assert kind == "Kafka" or found.get(feature) != "refused" or text in logged
