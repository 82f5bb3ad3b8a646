"""Points the clients' own test suites at the broker of `examples/broker`, and writes down what came of it.

    python tests/kafka/client_suites.py --out examples/broker/CLIENTS.md [--kafka]

The suites come from PyPI, in the clients' source distributions. With ``--kafka`` they also run on Kafka itself: a test that
fails there as well says nothing about a broker. Exits with 1 if a test fails that is not out of scope.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from brokers import KINDS, running
from maven import Unavailable

PATIENCE: Final = 900.0
TIMEOUT: Final = 60.0
"""How long one test may take, in seconds."""
SHOWN: Final = 160
"""How many characters of a reason."""

ONE_NODE: Final = "out of scope: there is one node with one disk"
TRANSACTIONS: Final = "out of scope: transactions"
ENCRYPTION: Final = "out of scope: connections are plain"
OUT_OF_SCOPE: Final = {
    "test_create_describe_delete_acls": "out of scope: nobody is asked who they are",
    "test_elect_leaders": ONE_NODE,
    "test_describe_log_dirs": ONE_NODE,
    "test_alter_replica_log_dirs": ONE_NODE,
    "test_alter_partition_reassignments": ONE_NODE,
    "test_list_partition_reassignments": ONE_NODE,
    "test_transactional_producer_messages": TRANSACTIONS,
    "test_transactional_producer_offsets": TRANSACTIONS,
    "test_ssl_handshake": ENCRYPTION,
    "test_legacy_kafka_client_ssl": ENCRYPTION,
}

SERVICE: Final = '''\
"""What the source distribution leaves out: a server that somebody else runs."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self): ...

    def close(self): ...

    def dump_logs(self): ...


class SpawnedService:
    pass
'''


@dataclass(frozen=True)
class Suite:
    """Tests that can be pointed at a broker.

    Args:
        package: whose source distribution has them.
        tests: the folder of those that need a broker.
        versions: as which version of Kafka they shall take each broker, by its kind.
        added: files that the source distribution lacks.
    """

    package: str
    tests: str
    versions: dict[str, str]
    added: dict[str, str] = field(default_factory=dict)


SUITES: Final = (
    Suite(
        "kafka-python",
        "test/integration",
        {"ours": "3.0", "Kafka": "4.2"},
        {"test/__init__.py": "", "test/service.py": SERVICE},
    ),
)
ELSEWHERE: Final = {
    "confluent-kafka": "its source distribution has no tests",
    "aiokafka": "its source distribution has no tests",
}


@dataclass(frozen=True)
class Result:
    """Of one test."""

    name: str
    outcome: str
    """`passed`, `failed`, `skipped` or `out of scope`."""
    reason: str = ""


def fetch(suite: Suite, folder: Path) -> Path:
    """Unpacks the source distribution of a package, of the version that is installed."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(folder)]
    subprocess.run([*command, suite.package], check=True, timeout=PATIENCE)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    (unpacked,) = (each for each in folder.iterdir() if each.is_dir())
    for name, text in suite.added.items():
        if not (unpacked / name).exists():
            (unpacked / name).write_text(text)
    return unpacked


def run(suite: Suite, source: Path, kind: str, more: list[str]) -> list[Result]:
    """The suite on a new broker."""
    with running(kind, "--partitions", "4") as broker, tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.xml")
        told = {"KAFKA_URI": f"tcp://{broker.address}", "KAFKA_VERSION": suite.versions[kind], "KAFKA_ROOT": scratch}
        command = [sys.executable, "-m", "pytest", suite.tests, "-q", "-p", "pytest_timeout", f"--timeout={TIMEOUT}"]
        command += ["-p", "no:cacheprovider", "-o", "addopts=", f"--junitxml={report}", *more]
        environment = {**os.environ, **told, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        with (source / "said").open("w") as said:
            subprocess.run(command, cwd=source, env=environment, stdout=said, stderr=said, check=False, timeout=PATIENCE)
        if not report.exists():
            raise subprocess.SubprocessError(
                f"the suite of {suite.package} did not run: {(source / 'said').read_text()[-2000:]}"
            )
        return sorted(results(ET.parse(report)), key=lambda result: result.name)


def results(report: ET.ElementTree) -> Iterator[Result]:
    """Of each test in a report of pytest."""
    for case in report.iter("testcase"):
        name = case.get("name", "")
        wrong = [each for each in case if each.tag in ("failure", "error", "skipped")]
        if not wrong:
            yield Result(name, "passed")
        elif wrong[0].tag == "skipped":
            yield Result(name, "skipped", _brief(wrong[0].get("message")))
        elif reason := OUT_OF_SCOPE.get(name.partition("[")[0]):
            yield Result(name, "out of scope", reason.removeprefix("out of scope: "))
        else:
            yield Result(name, "failed", _brief(wrong[0].get("message")))


def _brief(message: str | None) -> str:
    return " ".join((message or "").split()).replace("|", "/")[:SHOWN]


def page(found: dict[str, dict[str, list[Result]]]) -> str:
    """Markdown, by package and kind of broker."""
    lines = [
        "# What clients' own test suites say",
        "",
        "Made by `python tests/kafka/client_suites.py --kafka --out examples/broker/CLIENTS.md`, which fetches the suites.",
    ]
    for package, by_kind in found.items():
        lines += ["", f"## {package}", ""]
        for kind, each in by_kind.items():
            counts = Counter(result.outcome for result in each)
            broker = "this broker" if kind == "ours" else "Kafka itself"
            lines.append(f"- On {broker}: {', '.join(f'{count} {outcome}' for outcome, count in sorted(counts.items()))}.")
        for outcome in ("failed", "out of scope", "skipped"):
            some = [result for result in by_kind["ours"] if result.outcome == outcome]
            if some:
                lines += ["", f"| {outcome} | why |", "|---|---|"]
                lines += [f"| `{result.name}` | {result.reason} |" for result in some]
        passed = [result.name for result in by_kind["ours"] if result.outcome == "passed"]
        lines += ["", "Passed: " + ", ".join(f"`{name}`" for name in passed) + "."]
    lines += ["", "## Suites that could not be had", ""]
    lines += [f"- {package}: {why}." for package, why in ELSEWHERE.items()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the list (default: print it)")
    parser.add_argument("--kafka", action="store_true", help="on Kafka itself, too")
    parser.add_argument("-k", metavar="WORDS", help="only these tests, as pytest chooses them")
    options = parser.parse_args(arguments)
    found: dict[str, dict[str, list[Result]]] = {}
    try:
        for suite in SUITES:
            with tempfile.TemporaryDirectory(prefix="purgatory-") as folder:
                source = fetch(suite, Path(folder))
                more = ["-k", options.k] if options.k else []
                kinds = KINDS if options.kafka else KINDS[:1]
                found[suite.package] = {kind: run(suite, source, kind, more) for kind in kinds}
    except (Unavailable, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    text = page(found)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text)
    failed = [result for by_kind in found.values() for result in by_kind["ours"] if result.outcome == "failed"]
    for result in failed:
        print(f"failed: {result.name}: {result.reason}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
