"""The program as a whole, as a process: its command line, its end, and the demo with small numbers."""

import ast
import io
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
import tokenize
from pathlib import Path

import pytest
from broker.command import main
from broker.wire import APIS
from raw import Raw, fetch_fields, make_batch, produce_fields, produced
from readme_blocks import FENCED

EXAMPLE = Path(__file__).parents[3] / "examples" / "broker"
README = EXAMPLE / "README.md"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # the same purgatory as here
TIMEOUT = 120.0  # seconds; no test passes or fails by how much of it a busy machine takes


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLE), *arguments]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def address_of(broker: "subprocess.Popen[str]") -> str:
    assert broker.stdout is not None
    match = re.fullmatch(r"listening on (127\.0\.0\.1:\d+)\n", broker.stdout.readline())
    assert match is not None
    return match[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_with_requests_open(number: signal.Signals) -> None:
    with start("--port", "0") as broker, Raw(address := address_of(broker)) as client:
        client.ask("metadata", topics=[{"name": "topic"}], allow_auto_topic_creation=True)
        client.send("fetch", **fetch_fields("topic", 0, wait=3600))
        with Raw(address) as other:  # so that the fetch has arrived
            other.ask("metadata", topics=None)
        broker.send_signal(number)
        output, errors = broker.communicate(timeout=TIMEOUT)
        assert client.is_closed()
    assert (broker.returncode, errors) == (0, "")
    assert "fetch: completed 0, expired 0, cancelled 1, missed triggers 0, pending 0\n" in output


@pytest.mark.slow
def test_a_follower_is_stopped_and_started_by_a_signal() -> None:
    with start("--port", "0", "--replicas", "2", "--replica-lag", "1ms", "--replica-patience", "2min") as broker:
        try:
            with Raw(address_of(broker)) as client:
                client.ask("metadata", topics=[{"name": "topic"}], allow_auto_topic_creation=True)

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
    [("--replica-lag", "soon"), ("--replica-lag", "-1s"), ("--replicas", "0"), ("--partitions", "0"), ("--port", "http")],
)
def test_invalid_options_are_refused(argument: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([argument, value])
    assert ended.value.code == 2
    assert f"argument {argument}: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, start("--port", str(taken.getsockname()[1])) as broker:
        _, errors = broker.communicate(timeout=TIMEOUT)
    assert broker.returncode == 1
    assert re.fullmatch(r"broker: cannot serve at 127\.0\.0\.1:\d+: .*address already in use.*\n", errors)


@pytest.mark.slow
def test_the_recipe_of_the_readme_works_in_a_copy_of_the_folder(tmp_path: Path) -> None:
    recipe, test = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    shutil.copytree(EXAMPLE, tmp_path / "broker")
    (tmp_path / "conftest.py").write_text(recipe)
    (tmp_path / "test_orders.py").write_text(test)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:asyncio"]
    ran = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout


def test_the_readme_names_the_versions_that_are_offered() -> None:
    stated = {}
    for names, versions in re.findall(r"^\| ([\w, ]+) \| ([\d–, ]+) \|$", README.read_text(), re.MULTILINE):
        stated |= dict(zip(names.split(", "), versions.split(", "), strict=True))
    assert stated == {api.name.title().replace("_", ""): f"{api.min_version}–{api.max_version}" for api in APIS.values()}


def lines_of_code(path: Path) -> int:
    """Lines with anything on them but comments and docstrings."""
    text, lines = path.read_text(), set[int]()
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in nothing:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_the_readme_says_how_many_lines_there_are() -> None:
    paths = [path for path in EXAMPLE.glob("*.py") if not path.name.startswith("demo")]
    code, all_lines = sum(map(lines_of_code, paths)), sum(len(path.read_text().splitlines()) for path in paths)
    stated = re.search(r"^([\d,]+) lines of code without the demo, ([\d,]+) with", README.read_text(), re.MULTILINE)
    assert stated is not None
    assert [int(number.replace(",", "")) for number in stated.groups()] == [code, all_lines]


def test_every_link_of_the_readme_has_a_target() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert len(links) > 10
    assert [link for link in links if not (EXAMPLE / link).exists()] == []


def test_the_picture_is_what_its_program_draws() -> None:
    names = runpy.run_path(str(EXAMPLE.parents[1] / ".pictures" / "broker.py"))
    assert (EXAMPLE / "produce.svg").read_text() == names["picture"]()


def names_of(table: str) -> list[str]:
    """The first column of the tables that the demo prints."""
    return [line.strip("│").split("│")[0].strip() for line in table.splitlines() if line.startswith("│")]


@pytest.mark.slow
def test_the_demo_loses_and_doubles_nothing_and_prints_the_tables_of_the_readme() -> None:
    with start("--demo", "--messages", "400") as demo:
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

    (shown,) = (match[2] for match in FENCED.finditer(README.read_text()) if match[1] == "")
    assert names_of(shown) == names_of(output) != []
    number = re.compile(r"[\d,.]+")
    page, ours = ([number.sub("", lines[0]), number.sub("", lines[-1])] for lines in (shown.splitlines(), output.splitlines()))
    assert page == ours


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_demo_that_is_interrupted_leaves_no_process_behind() -> None:
    with start("--demo") as demo:
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children")
        until = time.monotonic() + TIMEOUT
        while len(pids := children.read_text().split()) < 9 and time.monotonic() < until:
            time.sleep(0.01)
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=TIMEOUT)
    assert (demo.returncode, errors) == (0, "")
    assert len(pids) == 9
    until = time.monotonic() + TIMEOUT
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < until:
        time.sleep(0.01)
    assert left == []
