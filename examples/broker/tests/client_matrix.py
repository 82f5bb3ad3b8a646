"""Runs each feature of each client on the broker of `examples/broker`, and writes a page with the
results.

    python examples/broker/tests/client_matrix.py --kafka --out examples/broker/FEATURES.md

Each cell is a run of a program of `matrix/`. With ``--kafka`` all run on Kafka itself as well, and
the page names the differences. Exits with 1 if something failed on our broker.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from textwrap import shorten
from typing import Final

from brokers import EXAMPLE, KINDS, running
from golang import compiled
from kafka_server import VERSION
from maven import Unavailable
from other_clients import JAVA_CLIENTS, KAFKAJS, java_command, kafkajs_command

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas by importlib.resources.read_text
    from kafka import KafkaAdminClient
sys.path.extend([str(EXAMPLE), str(EXAMPLE / "tests")])
from raw import Raw, fetch_fields

PROGRAMS: Final = Path(__file__).parent / "matrix"
CELL_TIMEOUT: Final = 120.0
"""How long a program may run, in seconds: it gives up by itself after a part of that."""
GO_MODULES: Final = (
    "github.com/twmb/franz-go@v1.22.2",
    "github.com/twmb/franz-go/pkg/kadm@v1.19.0",
    "github.com/IBM/sarama@v1.61.1",
)
CODECS: Final = ("gzip", "snappy", "lz4", "zstd")
"""In the order of their numbers in the attributes of a batch, from 1 on."""
FEATURES: Final = {
    "acks": "produce with `acks=all`, consume",
    **{codec: f"batches compressed by {codec}" for codec in CODECS},
    "headers": "headers of records",
    "commit": "a group resumes at its committed offset",
    "group": "members join and leave, and share the partitions",
    "static": "a static member restarts without a rebalance",
    "times": "offsets by time",
    "idempotence": "idempotent producer",
    "transactions": "transactions, with offsets; `read_committed`",
    "topics": "create and delete topics, add partitions",
    "configs": "alter and describe configs",
    "delete-records": "delete records",
    "delete-offsets": "delete offsets of a group",
    "new-group": "the group protocol of KIP-848",
    "tls": "TLS",
    "sasl": "SASL/PLAIN",
}
"""The name of each on the page."""
REFUSED: Final = ("new-group", "tls", "sasl")
WORDS: Final = {"works": "works", "refused": "refused", "not offered": "–", "failed": "**failed**"}


@dataclass(frozen=True)
class Cell:
    """The result of one feature of one client.

    Attributes:
        outcome: of `WORDS`.
        raised: the client's error when it gives up.
        broker: the first log message of our broker.
    """

    outcome: str
    raised: str = ""
    broker: str = ""


Matrix = dict[str, dict[str, Cell]]
"""Cells by client and feature."""


def python(client: str) -> tuple[str, Callable[[], list[str]]]:
    """The name of an installed client with its version, and the command of its program."""
    return f"{client} {version(client)}", lambda: [
        sys.executable,
        str(PROGRAMS / f"by_{client.replace('-', '_')}.py"),
    ]


def golang(name: str, module: str, program: str) -> tuple[str, Callable[[], list[str]]]:
    """The same of a client in Go."""
    return f"{name} {module.partition('@v')[2]}", lambda: [
        str(compiled(PROGRAMS / program, *GO_MODULES))
    ]


CLIENTS: Final[Mapping[str, tuple[str, Callable[[], list[str]]]]] = {
    **{client: python(client) for client in ("aiokafka", "confluent-kafka", "kafka-python")},
    "franz-go": golang("franz-go", GO_MODULES[0], "by_franz.go"),
    "sarama": golang("sarama", GO_MODULES[2], "by_sarama.go"),
    "kafkajs": (KAFKAJS.replace("@", " "), lambda: kafkajs_command("matrix/by_kafkajs.js")),
    "Java": (f"Java {JAVA_CLIENTS[-1]}", lambda: java_command("matrix/ByJava.java")),
}
"""Their names with versions, and the functions that return their programs' commands."""


def anonymous(line: str, port: str) -> str:
    """A line of a table that is the same in each run: without times, and without ports, but for
    Kafka's own."""
    line = re.sub(
        r"^[\d-]+ [\d:,]+ (WARNING|ERROR) |^%\d\|[\d.]+\||(?<=\d)<-\d+",
        "",
        line.replace(port, "9092"),
    )
    return " ".join(re.sub(r"127\.0\.0\.1:(?!9092)\d+", "127.0.0.1", line).split()).replace(
        "|", "/"
    )


def codec_of(address: str, topic: str) -> str:
    """How the first batch of a topic is compressed."""
    with Raw(address) as client:
        records = client.ask("fetch", **fetch_fields(topic, 0)).responses[0].partitions[0].records
    return ("none", *CODECS)[records[22] & 7]


def run(command: list[str], address: str, feature: str) -> Cell:
    """Runs the program of a client for one feature."""
    try:
        done = subprocess.run(
            [*command, address, feature],
            capture_output=True,
            text=True,
            check=False,
            timeout=CELL_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return Cell("failed", f"it did not end within {CELL_TIMEOUT:.0f} s")
    if done.returncode == 0:
        if feature in CODECS and (codec := codec_of(address, feature)) != feature:
            return Cell("failed", f"the batches are compressed by {codec}")
        return Cell("works")
    port = address.rpartition(":")[2]
    texts = done.stdout, done.stderr
    raised, logged = (
        [anonymous(line, port) for line in text.splitlines() if line.strip()] for text in texts
    )
    if raised and raised[-1].startswith("NotOffered"):
        return Cell("not offered")
    outcome = "refused" if feature in REFUSED and raised else "failed"
    return Cell(outcome, (raised or logged or ["it says nothing"])[-1])


def column(command: list[str], kind: str, features: list[str]) -> Iterator[tuple[str, Cell]]:
    """All features of one client, on a new broker."""
    with tempfile.TemporaryFile("w+") as log, running(kind, log=log) as broker:
        if kind == "Kafka":  # as in a new cluster that was formatted by Kafka's own program
            with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
                admin.update_features({"group.version": 1})
        for feature in features:
            log.seek(0, 2)
            before = log.tell()
            cell = run(command, broker.address, feature)
            log.seek(before)
            said = anonymous(log.readline(), broker.address.rpartition(":")[2])
            yield feature, replace(cell, broker=said)


def page(found: Mapping[str, Matrix], missing: Mapping[str, str]) -> str:
    """Markdown.

    Args:
        found: by kind of broker; at least ours.
        missing: why other clients were not run, by their names.
    """
    ours = found["ours"]
    rows = [feature for feature in FEATURES if any(feature in cells for cells in ours.values())]
    lines = [
        "# Features of each client on this broker",
        "",
        "Made by `python examples/broker/tests/client_matrix.py --kafka --out "
        "examples/broker/FEATURES.md`. Each cell is a run of",
        "[a program](tests/matrix) that checks its results; `–` means that the "
        "client does not offer the feature.",
        "",
        f"| | {' | '.join(ours)} |",
        "|---|" + "---|" * len(ours),
    ]
    for feature in rows:
        lines += [
            f"| {FEATURES[feature]} | "
            f"{' | '.join(WORDS[cells[feature].outcome] for cells in ours.values())} |"
        ]
    for outcome, heading in (
        ("failed", "Failures"),
        ("refused", "Refusals, and their messages"),
    ):
        cells = [
            (feature, client, ours[client][feature])
            for feature in rows
            for client in ours
            if ours[client][feature].outcome == outcome
        ]
        if cells:
            lines += [
                "",
                f"## {heading}",
                "",
                "| | client | its error | the broker's log |",
                "|---|---|---|---|",
            ]
            seen: set[str] = set()
            for feature, client, cell in cells:
                logged = "the same" if cell.broker in seen and cell.broker else cell.broker
                seen.add(cell.broker)
                raised = shorten(cell.raised, 100, placeholder=" …")
                lines.append(f"| {FEATURES[feature]} | {client} | {raised} | {logged} |")
    if "Kafka" in found:
        differing = [
            (feature, client, ours[client][feature], cell)
            for feature in rows
            for client, cells in found["Kafka"].items()
            if (cell := cells[feature]).outcome != ours[client][feature].outcome
        ]
        same = sum(map(len, found["Kafka"].values())) - len(differing)
        lines += ["", "## Beside Kafka", ""]
        lines += [
            f"The same programs ran on Kafka {VERSION}: {same} cells are the same, "
            f"{len(differing)} differ."
        ]
        if differing:
            lines += [
                "",
                "| | client | here | on Kafka | message there |",
                "|---|---|---|---|---|",
            ]
        lines += [
            f"| {FEATURES[feature]} | {client} | {WORDS[here.outcome]} | {WORDS[there.outcome]} "
            f"| {there.raised} |"
            for feature, client, here, there in differing
        ]
    if missing:
        lines += [
            "",
            "## Clients that were not run",
            "",
            *(f"- {client}: {why}." for client, why in missing.items()),
        ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "clients",
        nargs="*",
        metavar="CLIENT",
        help=f"of {', '.join(CLIENTS)} (default: all that can be had)",
    )
    parser.add_argument(
        "--feature",
        action="append",
        choices=FEATURES,
        help="only this one; more than once for several",
    )
    parser.add_argument("--kafka", action="store_true", help="on Kafka itself, too")
    parser.add_argument("--out", type=Path, help="where to write the page (default: print it)")
    options = parser.parse_args(arguments)
    if unknown := set(options.clients) - set(CLIENTS):
        parser.error(
            f"there is no client {', '.join(sorted(unknown))}: choose of {', '.join(CLIENTS)}"
        )
    found: dict[str, Matrix] = {kind: {} for kind in (KINDS if options.kafka else KINDS[:1])}
    missing: dict[str, str] = {}
    for client in options.clients or CLIENTS:
        name, command = CLIENTS[client]
        try:
            columns = {
                kind: dict(column(command(), kind, options.feature or list(FEATURES)))
                for kind in found
            }
        except Unavailable as error:
            missing[name] = str(error)
        else:
            for kind, cells in columns.items():
                found[kind][name] = cells
    text = page(found, missing)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text)
    failed = [
        f"failed: {client}: {FEATURES[feature]}: {cell.raised}"
        for client, cells in found["ours"].items()
        for feature, cell in cells.items()
        if cell.outcome == "failed"
    ]
    print(*failed, sep="\n", end="\n" if failed else "")
    return int(bool(failed) or not found["ours"])


if __name__ == "__main__":
    sys.exit(main())
