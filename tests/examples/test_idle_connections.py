"""`examples/idle_connections.py`: the server over real connections, and the demo with small numbers, as processes."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "idle_connections.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # the same purgatory as here
PATIENCE = 60.0  # seconds; no test passes or fails by how much of it a busy machine takes


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(EXAMPLE), *arguments]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def port_of(server: subprocess.Popen[str]) -> int:
    assert server.stdout is not None
    match = re.match(r"listening on 127\.0\.0\.1:(\d+), drops after \S+ s of silence\n", server.stdout.readline())
    assert match is not None
    return int(match[1])


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE)


def is_dropped(connection: socket.socket) -> bool:
    """Whether the other side has closed; waits for it as long as the socket's timeout says."""
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


def keep_one_talking_beside_a_silent_one() -> bool:
    """Whether that could be shown: not if this machine was too busy to let the one talk in time."""
    idle = 2.0
    with program("--port", "0", "--idle", str(idle)) as server, connect(port := port_of(server)) as talking:
        begun = time.monotonic()
        with connect(port) as silent:
            silent.setblocking(False)
            dropped_after = 0.0
            packets = 0
            while not dropped_after or packets < 30:
                last_sent = time.monotonic()
                talking.sendall(b"still here")
                packets += 1
                time.sleep(0.1)
                if time.monotonic() - last_sent > idle / 2:
                    return False
                try:
                    if not dropped_after and silent.recv(1) == b"":
                        dropped_after = time.monotonic() - begun
                except BlockingIOError:
                    assert time.monotonic() - begun < PATIENCE
        assert dropped_after >= idle - 0.001  # uvloop's clock shows whole milliseconds
        talking.settimeout(0.01)
        assert not is_dropped(talking)
        talking.settimeout(PATIENCE)
        assert is_dropped(talking)

        server.send_signal(signal.SIGTERM)
        output, errors = server.communicate(timeout=PATIENCE)
        heard = re.fullmatch(r"packets: (\d+), dropped: 2, still open: 0\n", output)
        assert heard is not None and 0 < int(heard[1]) <= packets  # what is read at once is one, on a busy machine
        assert errors == ""
        assert server.returncode == 0
    return True


def test_a_silent_connection_is_dropped_and_a_talking_one_is_kept() -> None:
    assert any(keep_one_talking_beside_a_silent_one() for _ in range(20))


def test_what_the_client_closes_is_not_dropped() -> None:
    with program("--port", "0", "--idle", "1") as server:
        port = port_of(server)
        for _ in range(3):
            connect(port).close()
        time.sleep(1.5)
        server.send_signal(signal.SIGINT)
        output, errors = server.communicate(timeout=PATIENCE)
    assert (output, errors) == ("packets: 0, dropped: 0, still open: 0\n", "")


def test_what_is_open_at_the_end_is_closed() -> None:
    with program("--port", "0", "--idle", "600") as server, connect(port_of(server)) as still_open:
        still_open.sendall(b"hello")
        server.send_signal(signal.SIGINT)
        output, errors = server.communicate(timeout=PATIENCE)
        assert "dropped: 0," in output
        assert errors == ""
        with suppress(ConnectionResetError):  # it was closed with our packet unread
            assert still_open.recv(1) == b""


@pytest.mark.parametrize("arguments", [["--idle", "0"], ["--idle", "nan"], ["--idle", "soon"], ["--connections", "0"]])
def test_what_makes_no_sense_is_refused(arguments: list[str]) -> None:
    with program(*arguments) as server:
        _, errors = server.communicate(timeout=PATIENCE)
        assert server.returncode == 2
        assert f"argument {arguments[0]}: " in errors


@pytest.mark.skipif(sys.platform != "linux", reason="the demo needs Linux: epoll, and all of 127.0.0.0/8")
def test_the_demo_drops_all_that_fell_silent_and_none_early_by_each_strategy() -> None:
    with program("--demo", "--connections", "60", "--ids", "2000", "--idle", "2") as demo:
        output, errors = demo.communicate(timeout=240)
    assert errors == ""
    assert demo.returncode == 0
    sockets, memory = output.split("in memory, ")
    for text, what, tracked in ((sockets, "connections", 60), (memory, "ids", 2000)):
        rows = {
            cells[0]: cells[1:]
            for line in text.splitlines()
            if line.startswith("│") and (cells := [cell.strip() for cell in line.strip("│").split("│")])
        }
        assert rows[what] == [f"{tracked:,}"] * 3
        assert rows["fell silent"] == rows["drops"]
        assert all(int(drops.replace(",", "")) >= tracked // 5 for drops in rows["drops"])
        assert rows["early drops"] == rows["missed drops"] == ["0"] * 3
        assert all(int(packets.replace(",", "")) > 2 * tracked for packets in rows["packets"])
        assert all(float(cell.split()[0]) >= 0 for name in ("lateness, p50", "lateness, p99") for cell in rows[name])
        assert all(cell.endswith(" µs") for cell in rows["CPU per packet"])
