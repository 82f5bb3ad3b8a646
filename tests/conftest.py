"""The fixtures of all tests, and how pytest-asyncio and pytest-xdist run them. `loops` explains on
which loops tests run."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies
from invariants import check
from loops import CURRENT, LOOP_FACTORIES, LoopFactory, Report, Runner, fail_on
from requirements import CLIENTS, left_out_without
from tiers import mark_nightly
from xdist.scheduler import LoadScopeScheduling

from purgatory import Purgatory
from purgatory.testing import VirtualTimeLoop

# A busy machine takes longer than 200 ms for an example, and longer to draw it.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

collect_ignore = left_out_without(CLIENTS, "pipeline/on_spark/test_topics.py") + left_out_without(
    ["selenium"],
    "console/test_page_browser.py",
    "examples/test_cookbook_page.py",
    "examples/test_long_poll_browser.py",
    "pipeline/test_page_browser.py",
)

LOOP_PARAMETERS = ("loop_factory", "_asyncio_loop_factory")
"""Parameters with the kind of loop: our fixture's and pytest-asyncio's."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], Any]]:
    """Coroutine functions that are tests run on each kind of loop."""
    return {kind: partial(CURRENT.new_loop, kind) for kind in LOOP_FACTORIES}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks a test as slow on every kind of loop except the first, unless it is marked
    `on_every_loop`, and as `eager` on eager tasks, which only some Pythons have."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        indices: Mapping[str, int] = getattr(callspec, "indices", {})
        is_other = any(
            indices.get(name) for name in LOOP_PARAMETERS
        ) and not item.get_closest_marker("slow")
        if is_other and callspec is not None and "eager" in callspec.id.split("-"):
            item.add_marker("eager")
        if is_other and not item.get_closest_marker("every_loop"):
            item.add_marker("slow")
    mark_nightly(items)


def pytest_report_header() -> str | None:
    if not collect_ignore:
        return None
    return f"left out, since what they import is missing: {', '.join(collect_ignore)}"


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    """Names a failed test at once: a run may be ended before its summary."""
    if not report.failed:
        return None
    category = "failed" if report.when == "call" else "error"
    return category, f"\n{category.upper()} {report.nodeid}\n", category.upper()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Keeps the names of the skipped tests: `.ci/run` runs them again where nothing is missing."""
    if config.pluginmanager.has_plugin("cacheprovider"):
        skipped = [f"{report.nodeid}\n" for report in terminalreporter.stats.get("skipped", ())]
        (config.cache.mkdir("skipped") / "tests").write_text("".join(skipped), encoding="utf-8")


def pytest_xdist_auto_num_workers() -> int:
    """One process more than processors: some tests wait in real time."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """Excludes what exists by now, some 10^5 objects, from garbage collection: tests that collect
    are quick, and find their own garbage alone."""
    if hasattr(gc, "freeze"):  # PyPy has none
        _start_hypothesis()
        gc.collect()
        gc.freeze()


@settings(max_examples=1, database=None)
@given(strategies.none())
def _start_hypothesis(_: None) -> None:
    """At its first test Hypothesis registers a generator of random numbers, and warns if the
    collector sees nothing that refers to it."""


@pytest.fixture(autouse=True)
def nothing_is_reported(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prepares the loop of a test that is a coroutine function, and fails after an unexpected
    report to the loop's exception handler, also during the closing of the loop."""
    if request.node.get_closest_marker("asyncio") is None:
        yield
        return
    asked_for = _reports_asked_for(request)
    callspec = getattr(request.node, "callspec", None)
    CURRENT.reports = [] if asked_for is None else asked_for
    CURRENT.start = callspec.params.get("start", 0.0) if callspec is not None else 0.0
    yield
    if asked_for is None:
        fail_on(CURRENT.reports)


@pytest.fixture(params=LOOP_FACTORIES)
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    """A factory for each kind of loop."""
    return LOOP_FACTORIES[request.param]


@pytest.fixture
def reports() -> list[Report]:
    """The calls of the loop's exception handler, in order. A test with this fixture allows them."""
    return []


def _reports_asked_for(request: pytest.FixtureRequest) -> list[Report] | None:
    return request.getfixturevalue("reports") if "reports" in request.fixturenames else None


@pytest.fixture
def run(request: pytest.FixtureRequest, loop_factory: LoopFactory) -> Runner:
    """Runs a coroutine on each kind of loop."""
    return Runner(loop_factory, _reports_asked_for(request))


@pytest.fixture
def virtual(request: pytest.FixtureRequest) -> Runner:
    """Runs a coroutine on virtual time only, beginning at `start`: `virtual(main, start=1e9)`."""
    return Runner(VirtualTimeLoop, _reports_asked_for(request))


@pytest.fixture
async def purgatory() -> AsyncIterator[Purgatory[Any]]:
    """A purgatory on the loop of the test. It is checked, and closed, when the test has passed;
    closing leaves nothing."""
    purgatory: Purgatory[Any] = Purgatory("test")
    yield purgatory
    check(purgatory)
    await purgatory.aclose()
    check(purgatory)
    assert (purgatory.pending, purgatory.watched) == (0, 0)


@pytest.fixture
def program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`program("-m", "purgatory.top", "--help")` runs this Python with these arguments, and returns
    its output. It fails if the exit status is not `status`. Options go to `subprocess.run`."""

    def run_program(
        *argv: object, status: int = 0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, argv)]
        given, timeout = options.pop("input", None), options.pop("timeout", 240)
        names = ("stdout", "stderr") if given is None else ("stdin", "stdout", "stderr")
        pipes = dict.fromkeys(names, subprocess.PIPE)
        options = {"text": True, "start_new_session": True, **pipes, **options}
        with subprocess.Popen(command, **options) as process:
            try:
                out, err = process.communicate(given, timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # its child processes, too
                raise
        assert process.returncode == status, (
            f"{command} ended with {process.returncode}:\n{out}\n{err}"
        )
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run_program


class SparkInGroups(LoadScopeScheduling):
    """Distributes tests one by one, except for tests on Spark, of which each group stays in one
    process: the tests that share a session, and the tests that start Spark in processes of their
    own, in three parts. (pytest-xdist's groups do not work with pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        _, folder, name = nodeid.partition("tests/pipeline/on_spark/")
        if not folder:
            return nodeid
        processes = ("test_processes", "test_library.py::test_spark_connect")
        if name.startswith(processes):
            return "processes of Spark"
        own = name.startswith(("test_cluster", "test_topics"))
        return name.partition("::")[0] if own else "Spark"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return SparkInGroups(config, log)
