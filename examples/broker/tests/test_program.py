"""The program as a whole, as a process: its command line, its end, and the demo with small
numbers."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest
from purgatory_broker.command import main
from purgatory_broker.wire import APIS
from raw import Raw, fetch_fields, make_batch, produce_fields, produced

EXAMPLE = Path(__file__).parents[1]
README = EXAMPLE / "README.md"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}  # the same packages as here
BROKER, DEMO = ("-m", "purgatory_broker"), (str(EXAMPLE / "demo.py"),)
TIMEOUT = 120.0  # seconds; no test passes or fails by how much of it a busy machine takes


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, *arguments]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def address_of(broker: "subprocess.Popen[str]") -> str:
    assert broker.stdout is not None
    match = re.fullmatch(r"listening on (127\.0\.0\.1:\d+)\n", broker.stdout.readline())
    assert match is not None
    return match[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_with_requests_open(number: signal.Signals) -> None:
    with start(*BROKER, "--port", "0") as broker, Raw(address := address_of(broker)) as client:
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
    with start(
        *BROKER,
        "--port",
        "0",
        "--replicas",
        "2",
        "--replica-lag",
        "1ms",
        "--replica-timeout",
        "2min",
    ) as broker:
        try:
            with Raw(address_of(broker)) as client:
                client.create("topic")

                def send(timeout: float) -> str:
                    fields = produce_fields("topic", make_batch(b"v"), timeout=timeout)
                    ((error, _),) = produced(client.ask("produce", **fields))
                    return error

                assert send(TIMEOUT) == "none"
                broker.send_signal(signal.SIGUSR1)
                while send(0.2) == "none":
                    pass
                broker.send_signal(signal.SIGUSR1)
                assert send(TIMEOUT) == "none"
        finally:
            broker.kill()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("--replica-lag", "soon"),
        ("--replica-lag", "-1s"),
        ("--replicas", "0"),
        ("--partitions", "0"),
        ("--replicas", "1_0"),
        ("--rebalance-delay", "5"),
        ("--replica-lag", "٣s"),
        ("--port", "http"),
        ("--port", "70000"),
        ("--port", "-1"),
        ("--control", "70000"),
        ("--advertise", "host"),
        ("--advertise", "host:0"),
    ],
)
def test_invalid_options_are_refused(
    argument: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([f"{argument}={value}"])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert f"argument {argument}: expected " in message
    assert repr(value) in message or repr(value.rpartition(":")[2]) in message


def test_options_out_of_their_bounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--replicas", "200"])
    assert ended.value.code == 2
    assert "replicas must be 1 to 100, got 200" in capsys.readouterr().err


def test_unusable_directory_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit) as ended:
        main(["--directory", str(file)])
    assert ended.value.code == 1
    message = capsys.readouterr().err
    assert message.startswith("purgatory-broker: cannot use --directory: ") and str(file) in message


@pytest.mark.slow
def test_a_port_that_is_taken_is_an_error() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        start(*BROKER, "--port", str(taken.getsockname()[1])) as broker,
    ):
        _, errors = broker.communicate(timeout=TIMEOUT)
    assert broker.returncode == 1
    assert re.fullmatch(
        r"purgatory-broker: cannot serve at 127\.0\.0\.1:\d+: .*[Aa]ddress already in use.*\n",
        errors,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [["-p", "no:xdist", "-p", "no:asyncio"], ["-p", "no:asyncio", "-n", "2"]]
)
def test_tests_of_the_readme_pass(tmp_path: Path, options: list[str]) -> None:
    test, conftest, fault = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[:3]
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_orders.py").write_text(test)
    (tmp_path / "test_fault.py").write_text(fault)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    plugin = [
        "-p",
        "purgatory_broker.pytest_plugin",
    ]  # which an installed distribution registers by itself
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *plugin,
        *options,
    ]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout


def test_what_the_distribution_registers_is_there() -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    for registered in (*project["scripts"].values(), *project["entry-points"]["pytest11"].values()):
        resolve_name(registered)


def test_the_readme_names_the_versions_that_are_offered() -> None:
    stated = {}
    for names, versions in re.findall(
        r"^\| ([\w, ]+) \| ([\d–, ]+) \|$", README.read_text(), re.MULTILINE
    ):
        stated |= dict(zip(names.split(", "), versions.split(", "), strict=True))
    assert stated == {
        api.name.title().replace("_", ""): f"{api.min_version}–{api.max_version}"
        for api in APIS.values()
    }


def test_every_link_of_the_readme_has_a_target() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert len(links) > 10
    assert [link for link in links if "//" not in link and not (EXAMPLE / link).exists()] == []


@pytest.mark.slow
def test_demo_loses_and_doubles_no_message() -> None:
    with start(*DEMO, "--messages", "400") as demo:
        output, errors = demo.communicate(timeout=280)
    assert (demo.returncode, errors) == (0, "")
    rows = {
        cells[0]: cells[1:]
        for line in output.splitlines()
        if line.startswith("│") and (cells := [cell.strip() for cell in line.strip("│").split("│")])
    }
    assert rows["messages confirmed"] == rows["received"] == ["400"] * 3
    assert rows["lost"] == rows["doubled: at two offsets"] == ["0"] * 3
    assert rows["died"] == ["1"] * 3
    for kind in ("produce", "fetch", "delete records", "join", "sync", "heartbeat"):
        assert rows[kind][3:] == ["0", "0"], kind  # missed triggers, pending
    assert re.search(r"rebalances: \d+, median [\d.]+ s, longest [\d.]+ s\n", output)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_interrupted_demo_leaves_no_process_behind() -> None:
    with start(*DEMO) as demo:
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children")
        until = time.monotonic() + TIMEOUT
        while len(pids := children.read_text().split()) < 9 and time.monotonic() < until:
            time.sleep(0.01)
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=TIMEOUT)
    assert (demo.returncode, errors) == (0, "")
    assert len(pids) == 9
    until = time.monotonic() + TIMEOUT
    while (
        left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    ) and time.monotonic() < until:
        time.sleep(0.01)
    assert left == []
