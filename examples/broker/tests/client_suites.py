"""Runs the clients' own test suites on the broker of `examples/broker`, and writes a page with the
results.

    python examples/broker/tests/client_suites.py --kafka --out examples/broker/CLIENTS.md

The suites come from where their clients come from: from PyPI, in the source distribution, and for
Go from the module itself. Those that are in no package run from a checkout: ``--checkout
confluent-kafka=PATH``. With ``--kafka`` all run on Kafka itself as well: a test that fails there
does not count. Exits with 1 if one fails that is not out of scope.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from brokers import KINDS, is_free, running
from kafka_server import VERSION
from maven import Unavailable
from proxies import proxies
from suites import Expected, GoSuite, PythonSuite, Result, Suite

ONE_NODE: Final = "there is one node with one disk"
ENCRYPTION: Final = "connections are not encrypted"
NO_AUTHENTICATION: Final = "there is no authentication"
SHARES: Final = "groups that share records are not switched on"
NO_TOPIC: Final = "committed offsets are in no topic"

NO_QUOTAS: Final = "there are no quotas"
TRANSACTIONS: Final = "the broker does not describe producers and transactions"
DOCKER: Final = (
    "TestFuncAdminListConsumerGroupOffsets",
    "TestFuncIdempotentBufferedSequence",
    "TestFuncTxnProduceWithBrokerFailure",
)
AT_ONCE: Final = "it asks for a topic that it has deleted, which creates the topic: here at once"
FAIL_ON_KAFKA: Final = (
    "TestReaderConsumerGroup/consumer_group_rebalance",
    "TestReaderReadCompactedMessage",
)
PANICS: Final = (
    "TestReaderConsumerGroup/consumer_group_commits_on_close",
    "TestReaderConsumerGroup/verify_offset_committed",
    "TestReaderConsumerGroup/verify_offset_committed_when_using_interval_committer",
)

SERVICE: Final = '''\
"""The source distribution lacks this file. The server runs already."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self): ...

    def close(self): ...

    def dump_logs(self): ...


class SpawnedService:
    pass
'''
TRIVUP: Final = '''\
"""Would start a Kafka, which is not needed with an address."""

KafkaCluster = None
'''

SUITES: Final[tuple[Suite, ...]] = (
    PythonSuite(
        "kafka-python",
        "test/integration",
        {"KAFKA_URI": "tcp://{address}", "KAFKA_ROOT": "{scratch}"},
        {"ours": "3.1", "Kafka": "4.3"},
        {"test/__init__.py": "", "test/service.py": SERVICE},
        out_of_scope={
            "test_create_describe_delete_acls": NO_AUTHENTICATION,
            "test_elect_leaders": ONE_NODE,
            "test_describe_log_dirs": ONE_NODE,
            "test_alter_replica_log_dirs": ONE_NODE,
            "test_alter_partition_reassignments": ONE_NODE,
            "test_list_partition_reassignments": ONE_NODE,
            "test_ssl_handshake": ENCRYPTION,
            "test_legacy_kafka_client_ssl": ENCRYPTION,
        },
    ),
    GoSuite(
        "github.com/twmb/franz-go@v1.22.2",
        "pkg/kgo",
        {"KGO_SEEDS": "{address}", "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "20000"},
        uses_broker=r"newTestClient|tmpTopic|internalTopic|KGO_TEST|allowShare|testChain",
        never={
            "Kafka": {
                f"TestShareGroup{part}": SHARES
                for part in ("", "AckOnClose", "ETL", "OffsetsAdmin")
            },
        },
        out_of_scope={"TestConsumeRegex": NO_TOPIC, "Test848RegexBrokerResolves": NO_TOPIC},
    ),
    GoSuite(
        "github.com/segmentio/kafka-go@v0.4.51",
        ".",
        {"KAFKA_VERSION": VERSION},
        uses_broker=r"localhost|newLocalClient|\btest(Conn|ConsumerGroup|Dialer|Reader|Writer)\w+",
        never=dict.fromkeys(
            KINDS,
            dict.fromkeys(PANICS, "it panics with any broker, and so ends all others"),
        ),
        out_of_scope={
            **dict.fromkeys(FAIL_ON_KAFKA, "it fails on Kafka itself, too"),
            "TestConn/test_delete_topics": AT_ONCE,
            "TestConn/test_delete_topics_with_an_invalid_topic": AT_ONCE,
            "TestConn/test_join_group_with_an_invalid_refreshTimeout": "sessions may be shorter "
            "here than Kafka allows",
            "TestWriter/writing_a_message_with_SASL_Plain_authentication": NO_AUTHENTICATION,
            "TestAlterUserScramCredentials": NO_AUTHENTICATION,
            "TestDescribeUserScramCredentials": NO_AUTHENTICATION,
            "TestClientCreateACLs": NO_AUTHENTICATION,
            "TestClientDeleteACLs": NO_AUTHENTICATION,
            "TestClientDescribeACLs": NO_AUTHENTICATION,
            "TestClientAlterPartitionReassignments": ONE_NODE,
            "TestClientAlterPartitionReassignmentsMultiTopics": ONE_NODE,
            "TestClientElectLeaders": ONE_NODE,
            "TestClientListPartitionReassignments": ONE_NODE,
            "TestClientAlterClientQuotas": NO_QUOTAS,
        },
        broker=Expected(port=9092),
    ),
    GoSuite(
        "github.com/IBM/sarama@v1.61.1",
        ".",
        {"TOXIPROXY_ADDR": "http://127.0.0.1:8474", "KAFKA_VERSION": VERSION},
        uses_broker="",
        never=dict.fromkeys(
            KINDS, dict.fromkeys(DOCKER, "it stops a container of Docker's, or reads its log")
        ),
        out_of_scope={
            "TestConsumerFetchFollowerFailover": ONE_NODE,
            "TestFuncAdminAlterPartitionReassignments": ONE_NODE,
            "TestFuncAdminDescribeLogDirs": ONE_NODE,
            "TestFuncAdminElectLeadersV1": ONE_NODE,
            "TestFuncAdminDescribeConfig": "configurations come without their documentation",
            "TestFuncAdminIncrementalAlterConfigs": "the configuration of the broker cannot be "
            "altered",
            "TestFuncAdminListConsumerGroupOffsetsBatch": "one request has the offsets of one "
            "group",
            "TestFuncAdminQuotas": NO_QUOTAS,
            "TestFuncAdminUpdateFeatures": "there are no features to switch on",
            "TestFuncDescribeProducers": TRANSACTIONS,
            "TestFuncDescribeTransactions": TRANSACTIONS,
            "TestFuncListTransactions": TRANSACTIONS,
        },
        broker=Expected(
            proxied=(29091, 29092, 29093, 29094, 29095),
            settings={"ours": ("--no-auto-create",), "Kafka": ("auto.create.topics.enable=false",)},
        ),
        tag="functional",
        files="functional_*_test.go",
        edits={
            "functional_test.go": ("ReplicationFactor: 3,", "ReplicationFactor: 1,")
        },  # there is one node
    ),
    PythonSuite(
        "confluent-kafka",
        "tests/integration",
        {"BROKERS": "{address}"},
        {},
        {
            "trivup/__init__.py": "",
            "trivup/clusters/__init__.py": "",
            "trivup/clusters/KafkaCluster.py": TRIVUP,
        },
        left_out=("tests/integration/schema_registry", "tests/integration/integration_test.py"),
        needs_checkout="no source distribution has its tests. `--checkout confluent-kafka=PATH` "
        "runs those "
        "of a checkout",
        out_of_scope={
            "test_user_scram_credentials": NO_AUTHENTICATION,
        },
    ),
)
ELSEWHERE: Final = {
    "aiokafka": "no source distribution has its tests, and they start Kafka in Docker by "
    "themselves: "
    "they take no address",
    "kafkajs": "its package has no tests",
    "Java": "its tests start clusters of their own, in their own process",
}
"""Suites that cannot be run at all."""

Found = dict[str, dict[str, list[Result]]]
"""Results by suite and by kind of broker."""


def run(suite: Suite, source: Path, kind: str, chosen: str | None) -> list[Result]:
    """The suite on a new broker.

    Raises:
        Unavailable: it wants a port that is taken.
    """
    expected = suite.broker
    if expected.port and not is_free(expected.port):
        raise Unavailable(
            f"its tests take no address but localhost:{expected.port}, which is taken on this "
            "machine"
        )
    options = "--partitions", "4", *expected.settings.get("ours", ())
    settings = "".join(f"{line}\n" for line in expected.settings.get("Kafka", ()))
    with ExitStack() as stack:
        broker = stack.enter_context(
            running(
                kind,
                *options,
                settings=settings,
                port=expected.port,
                advertised=expected.advertised,
            )
        )
        if expected.proxied:
            stack.enter_context(proxies(expected.proxied, broker.address))
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="purgatory-"))
        found = suite.run(source, kind, broker.address, Path(scratch), chosen)
    return sorted(found, key=lambda result: result.name)


def table(heads: str, results: list[Result]) -> list[str]:
    """Names and reasons, a row for each reason; nothing if there are none."""
    if not results:
        return []
    names: dict[str, list[str]] = {}
    for result in results:
        names.setdefault(plain(result.reason), []).append(f"`{result.name}`")
    rows = (f"| {', '.join(those)} | {reason} |" for reason, those in names.items())
    return ["", f"| {heads} | why |", "|---|---|", *rows]


def plain(words: str) -> str:
    """A client's message for Markdown: its brackets make no links."""
    return re.sub(r"([][<>])", r"\\\1", words)


def page(found: Found, missing: dict[str, str]) -> str:
    """Markdown.

    Args:
        found: the results.
        missing: why other suites were not run, by package.
    """
    lines = [
        "# Results of the clients' own test suites",
        "",
        "Made by `python examples/broker/tests/client_suites.py --kafka --out "
        "examples/broker/CLIENTS.md`, which fetches the suites.",
        "Of the Go suites only tests that use a broker are run; sarama's connect through "
        "toxiproxy, and with one replica where they",
        "want three.",
    ]
    for name, by_kind in found.items():
        lines += ["", f"## {name}", ""]
        for kind, each in by_kind.items():
            counts = Counter(result.outcome for result in each)
            broker = "this broker" if kind == "ours" else "Kafka itself"
            lines.append(
                f"- On {broker}: "
                f"{', '.join(f'{count} {outcome}' for outcome, count in sorted(counts.items()))}."
            )
        for outcome in ("failed", "out of scope"):
            lines += table(
                outcome, [result for result in by_kind["ours"] if result.outcome == outcome]
            )
        lines += table(
            "failed on Kafka",
            [result for result in by_kind.get("Kafka", []) if result.outcome == "failed"],
        )
    lines += [
        "",
        "## Suites that were not run",
        "",
        *(f"- {package}: {why}." for package, why in missing.items()),
    ]
    return "\n".join(lines) + "\n"


def checkouts(given: list[str]) -> dict[str, Path]:
    """Folders by the name of the suite, from `NAME=PATH`."""
    found = {name: Path(path) for name, _, path in (each.partition("=") for each in given)}
    for name, path in found.items():
        if not path.is_dir():
            raise argparse.ArgumentTypeError(f"--checkout {name}={path}: there is no such folder")
    return found


def package(suite: Suite) -> str:
    """The name of a suite on the command line."""
    return (
        suite.package
        if isinstance(suite, PythonSuite)
        else suite.module.partition("@")[0].rpartition("/")[2]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = {package(suite): suite for suite in SUITES}
    parser.add_argument(
        "suites",
        nargs="*",
        metavar="SUITE",
        help=f"of {', '.join(names)} (default: all that can be had)",
    )
    parser.add_argument("--out", type=Path, help="where to write the list (default: print it)")
    parser.add_argument("--kafka", action="store_true", help="on Kafka itself, too")
    parser.add_argument(
        "--checkout",
        action="append",
        default=[],
        metavar="SUITE=PATH",
        help="take its tests from there",
    )
    parser.add_argument(
        "-k", metavar="WORDS", help="only these tests: words as for pytest, a pattern for Go"
    )
    options = parser.parse_args(arguments)
    try:
        folders = checkouts(options.checkout)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if unknown := {*options.suites, *folders} - set(names):
        parser.error(
            f"there is no suite {', '.join(sorted(unknown))}: choose of {', '.join(names)}"
        )
    found: Found = {}
    missing: dict[str, str] = {}
    for name in options.suites or names:
        suite = names[name]
        with tempfile.TemporaryDirectory(prefix="purgatory-") as folder:
            try:
                source = suite.fetch(Path(folder), folders.get(name))
                kinds = KINDS if options.kafka else KINDS[:1]
                found[suite.name] = {kind: run(suite, source, kind, options.k) for kind in kinds}
            except Unavailable as error:
                missing[name] = str(error)
            except subprocess.SubprocessError as error:
                print(error, file=sys.stderr)
                return 1
    text = page(found, missing | ELSEWHERE)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text)
    failed = [
        result
        for by_kind in found.values()
        for result in by_kind["ours"]
        if result.outcome == "failed"
    ]
    for result in failed:
        print(f"failed: {result.name}: {result.reason}")
    return int(bool(failed) or not found)


if __name__ == "__main__":
    sys.exit(main())
