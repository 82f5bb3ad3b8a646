"""The program as a whole: its command line, its settings, its end, its page, and the demo with small
numbers."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from brokers import ENVIRONMENT, EXAMPLE, TIMEOUT, program
from purgatory_broker import testing
from purgatory_broker.command import main
from purgatory_broker.server import Server
from purgatory_broker.settings import Settings
from purgatory_broker.wire import APIS
from raw import Raw, fetch_fields, make_batch
from readme_blocks import FENCED

README = EXAMPLE / "README.md"
PROJECT = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
TEXT = README.read_text("utf-8")
PYTHON = [match[2] for match in FENCED.finditer(TEXT) if match[1] == "python"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_with_requests_open(number: signal.Signals) -> None:
    with program() as (broker, address), Raw(address) as client:
        client.create("topic")
        client.send("fetch", **fetch_fields("topic", 0, wait=3600))
        with Raw(address) as other:  # so that the fetch has arrived
            other.ask("metadata", topics=None)
        broker.send_signal(number)
        output, errors = broker.communicate(timeout=TIMEOUT)
        assert client.is_closed()
    assert (broker.returncode, errors) == (0, "")
    assert "fetch: completed 0, expired 0, cancelled 1, missed triggers 0, pending 0\n" in output


@pytest.mark.slow
def test_signal_stops_and_starts_a_follower() -> None:
    options = ("--replicas", "2", "--replica-lag", "1ms", "--replica-timeout", "2min")
    with program(*options) as (broker, address), Raw(address) as client:
        client.create("topic")

        def send(timeout: float) -> str:
            ((error, _),) = client.produce("topic", make_batch(b"v"), timeout=timeout)
            return error

        assert send(TIMEOUT) == "none"
        broker.send_signal(signal.SIGUSR1)
        while send(0.2) == "none":
            pass
        broker.send_signal(signal.SIGUSR1)
        assert send(TIMEOUT) == "none"


INVALID = (
    "replica-lag=soon replica-lag=-1s replica-lag=٣s replicas=0 replicas=1_0 partitions=0 "
    "rebalance-delay=5 port=http port=70000 port=-1 control=70000 advertise=host advertise=host:0"
)


@pytest.mark.parametrize("option", INVALID.split())
def test_invalid_options_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([f"--{option}"])
    name, value = option.split("=")
    message = capsys.readouterr().err
    assert f"argument --{name}: expected " in message
    assert repr(value) in message or repr(value.rpartition(":")[2]) in message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("replicas", 0, "replicas must be 1 to 100, got 0"),
        ("replicas", 101, "replicas must be 1 to 100, got 101"),
        ("partitions", "3", "partitions must be an integer, got '3'"),
        ("partitions", True, "partitions must be an integer, got True"),
        ("partitions", 10_001, "partitions must be 1 to 10000, got 10001"),
        ("rebalance_delay", -1, "rebalance_delay must be zero or more seconds, got -1"),
        ("replica_lag", float("nan"), "replica_lag must be zero or more seconds, got nan"),
        ("replica_timeout", float("inf"), "replica_timeout must be zero or more seconds, got inf"),
        ("clean_interval", None, "clean_interval must be a number of seconds, got None"),
        ("clean_interval", 0, "clean_interval must be more than zero seconds, got 0"),
        ("min_session_timeout", "1s", "min_session_timeout must be a number of seconds, got '1s'"),
        ("fsync", 1, "fsync must be True or False, got 1"),
        ("directory", "data", "directory must be a pathlib.Path or None, got 'data'"),
    ],
)
def test_bad_value_is_refused_in_words(name: str, value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        Settings(**{name: value})
    assert str(error.value) == message


def test_what_cannot_be_used_ends_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options, status, error in (
            (("--replicas", "200"), "2", "replicas must be 1 to 100, got 200"),
            (("--directory", str(file)), "1", f"cannot use --directory: .*{file}"),
            (("--port", str(port)), "1", rf"cannot serve at 127\.0\.0\.1:{port}: .*already in use"),
        ):
            with pytest.raises(SystemExit, match=status):
                main(options)
            assert re.search(f"purgatory-broker: .*{error}", capsys.readouterr().err)
        with pytest.raises(OSError, match="in use"), testing.BrokerThread(port=port):
            pass


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [["-p", "no:xdist", "-p", "no:asyncio"], ["-p", "no:asyncio", "-n", "2"]]
)
def test_tests_of_the_readme_pass(tmp_path: Path, options: list[str]) -> None:
    for name, text in zip(("test_orders", "conftest", "test_fault"), PYTHON, strict=True):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    # An installed distribution registers the plugin by itself.
    plugin = ["-p", "no:cacheprovider", "-p", "purgatory_broker.pytest_plugin"]
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", *plugin, *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ran = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, **pipes, check=False, timeout=2 * TIMEOUT
    )
    assert ran.returncode == 0 and "3 passed" in ran.stdout, ran.stdout


def test_lines_of_the_readme_start_brokers() -> None:
    code = [" ".join(each.split()) for each in re.findall(r"`([^`]+)`", FENCED.sub("", TEXT))]
    (in_a_thread,) = (each for each in code if each.startswith("with BrokerThread("))
    (on_the_loop,) = (each for each in code if each.startswith("async with Server("))
    source = f"""
def first():
    {in_a_thread}
        return broker.address, broker.server.broker.settings
async def second():
    {on_the_loop}
        return server.address
"""
    names: dict[str, Any] = {"BrokerThread": testing.BrokerThread, "Server": Server}
    names["Settings"] = Settings
    exec(source, names)
    address, settings = names["first"]()
    assert (settings.replicas, settings.partitions) == (3, 6)
    for each in address, asyncio.run(names["second"]()):
        assert re.fullmatch(r"127\.0\.0\.1:\d+", each)


def test_what_the_distribution_registers_is_there() -> None:
    for names in (PROJECT["scripts"], PROJECT["entry-points"]["pytest11"]):
        for registered in names.values():
            resolve_name(registered)


def test_the_readme_names_the_versions_that_are_offered() -> None:
    stated = {}
    for names, versions in re.findall(r"^\| ([\w, ]+) \| ([\d–, ]+) \|$", TEXT, re.MULTILINE):
        stated |= dict(zip(names.split(", "), versions.split(", "), strict=True))
    assert stated == {
        api.name.title().replace("_", ""): f"{api.min_version}–{api.max_version}"
        for api in APIS.values()
    }


@pytest.mark.slow
def test_demo_loses_and_doubles_no_message() -> None:
    command = [sys.executable, str(EXAMPLE / "demo.py"), "--messages", "400"]
    ran = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=280
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    rows = {
        cells[0]: cells[1:]
        for line in ran.stdout.splitlines()
        if line.startswith("│") and (cells := [cell.strip() for cell in line.strip("│").split("│")])
    }
    assert rows["messages confirmed"] == rows["received"] == ["400"] * 3
    assert rows["lost"] == rows["doubled: at two offsets"] == ["0"] * 3
    assert rows["died"] == ["1"] * 3
    for kind in ("produce", "fetch", "delete records", "join", "sync", "heartbeat"):
        assert rows[kind][3:] == ["0", "0"], kind  # missed triggers, pending
    assert re.search(r"rebalances: \d+, median [\d.]+ s, longest [\d.]+ s\n", ran.stdout)
