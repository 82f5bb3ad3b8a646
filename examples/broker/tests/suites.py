"""The clients' own test suites: where each comes from, how it gets the address of a broker, and
which tests are out of scope.

Each suite can `fetch` itself into a folder and `run` there on a broker that was started before.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Final
from xml.etree import ElementTree as ET

from golang import go
from maven import Unavailable

SUITE_TIMEOUT: Final = 900.0
TEST_TIMEOUT: Final = 60.0
"""How long one test of Python's may take, in seconds."""
MAX_REASON_LENGTH: Final = 160
"""In characters, for the table."""


@dataclass(frozen=True)
class Result:
    """The result of one test."""

    name: str
    outcome: str
    """`passed`, `failed`, `skipped` or `out of scope`."""
    reason: str = ""


def brief(message: str | None) -> str:
    """A message in one line of a table."""
    return " ".join((message or "").split()).replace("|", "/")[:MAX_REASON_LENGTH]


@dataclass(frozen=True)
class Expected:
    """The tests' expectations of the broker.

    Args:
        port: of localhost, where they look for it if they take no address.
        proxied: ports of toxiproxy, by which they reach it.
        settings: options of the command line of ours, lines of Kafka's configuration; by the kind
            of broker.
    """

    port: int = 0
    proxied: tuple[int, ...] = ()
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def advertised(self) -> str:
        """Where clients are to connect; "" is where the broker listens."""
        if self.proxied:
            return f"127.0.0.1:{self.proxied[0]}"
        return f"localhost:{self.port}" if self.port else ""


@dataclass(frozen=True)
class PythonSuite:
    """Tests that pytest runs.

    Args:
        package: whose tests they are. The client is the one that is installed.
        tests: the folder of those that need a broker.
        variables: of the environment, from which the tests take the address: `{address}` and
            `{scratch}` are replaced.
        versions: the version of Kafka that each kind of broker represents, in the variable
            `KAFKA_VERSION`.
        added: files that the source distribution lacks.
        left_out: folders and files that need something other than a broker.
        needs_checkout: why they are not on PyPI; "" if the source distribution has them.
        out_of_scope: features that this broker lacks, by the name of the test.
        broker: their expectations of the broker.
    """

    package: str
    tests: str
    variables: Mapping[str, str]
    versions: Mapping[str, str]
    added: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    needs_checkout: str = ""
    out_of_scope: Mapping[str, str] = field(default_factory=dict)
    broker: Expected = Expected()

    @property
    def name(self) -> str:
        """Whose tests, and of which version."""
        return f"{self.package} {version(self.package)}"

    def fetch(self, folder: Path, checkout: Path | None = None) -> Path:
        """The tests and their own modules, in `folder`: from a checkout, or from PyPI."""
        if checkout is not None:
            source = folder / "checkout"
            top = Path(self.tests).parts[
                0
            ]  # without the client: the one that is installed is asked
            shutil.copytree(checkout / top, source / top)
        elif self.needs_checkout:
            raise Unavailable(self.needs_checkout)
        else:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--no-binary",
                ":all:",
                "-d",
                str(folder),
            ]
            subprocess.run(
                [*command, f"{self.package}=={version(self.package)}"],
                check=True,
                timeout=SUITE_TIMEOUT,
            )
            (archive,) = folder.glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
            (source,) = (each for each in folder.iterdir() if each.is_dir())
        for name, text in self.added.items():
            if not (source / name).exists():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).write_text(text)
        return source

    def run(
        self, source: Path, kind: str, address: str, scratch: Path, chosen: str | None = None
    ) -> list[Result]:
        """Runs it; `chosen` are words as pytest's `-k` takes them."""
        report = scratch / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            self.tests,
            "-q",
            "-p",
            "pytest_timeout",
            f"--timeout={TEST_TIMEOUT}",
        ]
        command += [
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=",
            f"--junitxml={report}",
            "--continue-on-collection-errors",
        ]
        command += [
            *(f"--ignore={each}" for each in self.left_out),
            *(["-k", chosen] if chosen else []),
        ]
        variables = {
            name: text.format(address=address, scratch=scratch)
            for name, text in self.variables.items()
        }
        variables |= {
            "KAFKA_VERSION": self.versions.get(kind, ""),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        _run(command, source, variables, scratch / "output")
        if not report.exists():
            raise subprocess.SubprocessError(
                f"the suite of {self.name} did not run: {(scratch / 'output').read_text()[-2000:]}"
            )
        return list(self.results(ET.parse(report)))

    def results(self, report: ET.ElementTree) -> Iterator[Result]:
        """Of each test in a report of pytest."""
        for case in report.iter("testcase"):
            name = case.get("name", "")
            wrong = [each for each in case if each.tag in ("failure", "error", "skipped")]
            if not wrong:
                yield Result(name, "passed")
            elif wrong[0].tag == "skipped":
                yield Result(name, "skipped", brief(wrong[0].get("message")))
            elif reason := self.out_of_scope.get(name.partition("[")[0]):
                yield Result(name, "out of scope", reason)
            else:
                yield Result(name, "failed", brief(wrong[0].get("message")))


@dataclass(frozen=True)
class GoSuite:
    """Tests of a Go module, which are part of every module.

    Args:
        module: with its version.
        package: the path of the tested package in it; "." is the module itself.
        variables: of the environment, from which the tests take the address: `{address}` is
            replaced.
        uses_broker: a pattern for the source of the tests that use a broker; the others are not
            run.
        never: out of scope, and not started, since it would never end, or end all others; by the
            kind of broker.
        out_of_scope: features that this broker lacks, by the name of the test.
        broker: their expectations of the broker.
        tag: a build tag for its tests.
        files: a pattern for the files with its tests.
        edits: a text and what to put in its place, by file, where there is no option.
    """

    module: str
    package: str
    variables: Mapping[str, str]
    uses_broker: str
    never: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    out_of_scope: Mapping[str, str] = field(default_factory=dict)
    broker: Expected = Expected()
    tag: str = ""
    files: str = "*_test.go"
    edits: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Whose tests, and of which version."""
        module, _, number = self.module.partition("@v")
        return f"{module.rpartition('/')[2]} {number}"

    def fetch(self, folder: Path, checkout: Path | None = None) -> Path:
        """Compiles the tests into `folder`; returns where their source is."""
        module, _, number = self.module.partition("@")
        package = str(PurePosixPath(module, self.package))
        go("mod", "init", "suites", cwd=folder)
        if checkout is not None:
            go("mod", "edit", f"-replace={module}={checkout.resolve()}", cwd=folder)
        go("get", "-t", f"{package}@{number}", cwd=folder)
        source = Path(go("list", "-m", "-f", "{{.Dir}}", module, cwd=folder))
        if self.edits:
            source = shutil.copytree(source, folder / "module", copy_function=shutil.copyfile)
            for name, (old, new) in self.edits.items():
                (source / name).write_text((source / name).read_text().replace(old, new))
            go("mod", "edit", f"-replace={module}={source}", cwd=folder)
            go("get", "-t", package, cwd=folder)
        go("test", "-c", "-tags", self.tag, "-o", str(folder / "suite.test"), package, cwd=folder)
        (folder / "source").symlink_to(source / self.package)
        return folder / "source"

    def broker_tests(self, source: Path) -> list[str]:
        """The names of the tests that use a broker."""
        pattern = re.compile(
            r"^func (Test\w+)\(t \*testing\.T\) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL
        )
        texts = [each.read_text() for each in sorted(source.glob(self.files))]
        return [
            name
            for text in texts
            for name, body in pattern.findall(text)
            if re.search(self.uses_broker, body)
        ]

    def run(
        self, source: Path, kind: str, address: str, scratch: Path, chosen: str | None = None
    ) -> list[Result]:
        """Runs it; `chosen` is a pattern for names."""
        never = self.never.get(kind, {})
        names = [name for name in self.broker_tests(source) if re.search(chosen or "", name)]
        skipped = "|".join("/".join(f"^{part}$" for part in name.split("/")) for name in never)
        command = [
            str(source.parent / "suite.test"),
            "-test.v=test2json",
            f"-test.run=^({'|'.join(names)})$",
        ]
        command += [f"-test.skip={skipped}"] if skipped else []
        command.append(f"-test.timeout={SUITE_TIMEOUT - 60:.0f}s")
        variables = {name: text.format(address=address) for name, text in self.variables.items()}
        _run(command, source, variables, scratch / "output")
        events = go("tool", "test2json", "cat", str(scratch / "output"), cwd=scratch)
        found = list(self.results(events.splitlines()))
        if not found:
            raise subprocess.SubprocessError(
                f"the suite of {self.name} did not run: {(scratch / 'output').read_text()[-2000:]}"
            )
        return found + [
            Result(name, "out of scope", why)
            for name, why in never.items()
            if name.partition("/")[0] in names
        ]

    def results(self, events: list[str]) -> Iterator[Result]:
        """The result of each test in the output of `go tool test2json`; of a test with subtests,
        only its subtests."""
        outcomes: dict[str, str] = {}
        messages: dict[str, list[str]] = {}
        for event in map(json.loads, events):
            name, action = event.get("Test"), event.get("Action")
            if name and action in ("run", "pass", "fail", "skip"):
                outcomes[name] = action
            elif name and (
                message := re.match(r"\s+\w+_test\.go:\d+: (.*)", event.get("Output", ""))
            ):
                messages.setdefault(name, []).append(message[1])
        words = {"pass": "passed", "skip": "skipped", "fail": "failed", "run": "failed"}
        for name, action in outcomes.items():
            if any(other.startswith(name + "/") for other in outcomes):
                continue
            outcome = words[action]
            reason = self.out_of_scope.get(name) or self.out_of_scope.get(
                name.partition("/")[0], ""
            )
            if outcome == "failed" and reason:
                yield Result(name, "out of scope", reason)
            elif outcome == "passed":
                yield Result(name, outcome)
            else:
                yield Result(
                    name,
                    outcome,
                    "it did not end"
                    if action == "run"
                    else brief(next(iter(messages.get(name, [])), "")),
                )


Suite = PythonSuite | GoSuite


def _run(command: list[str], folder: Path, variables: dict[str, str], output: Path) -> None:
    """Runs a suite in `folder`; its output goes to a file."""
    with output.open("w") as file:
        environment = {**os.environ, **variables}
        subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=file,
            check=False,
            timeout=SUITE_TIMEOUT,
        )
