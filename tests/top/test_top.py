"""What `python -m purgatory.top` shows of a state; the tests of the page cover how it follows a
server."""

import io
import json
import os
import pty
import re
import subprocess
import sys
import termios
import threading
from contextlib import contextmanager, suppress
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import getitem
from urllib.error import HTTPError

import pytest
from rich.console import Console, Group
from rich.text import Text

from purgatory import top
from purgatory.top import _follow, _source
from purgatory.top._drawing import cut, screen


def state(**more):
    nothing = {"history": [], "purgatories": [], "polls": None, "relay": None}
    return {"worker": {"id": "a", "pid": 7}, **nothing, **more}


def other(pid=1, **more):
    """Another worker, as the page announces it."""
    return {"pid": pid, "host": "vm", "pending": 1, "polls": 1, "address": None, **more}


def lines_of(state, width=120, height=40, error="", now=0.0):
    """The lines of a terminal. All of an answer is untrusted, as in the programs."""
    console = Console(file=io.StringIO(), width=width)
    with _source.of_a_page():
        console.print(Group(*screen(state, error, height, width, now)))
    return console.file.getvalue().splitlines()


def test_other_workers_are_listed_in_printable_text():
    address = "http://db-1:8000/purgatory/"
    known = other(12345, host="db-1", pending=1234, polls=5, address=address)
    rude = other(None, host="\x1b[2J\nworker", pending=None, polls=None)
    lines = lines_of(state(others=[rude, known]))
    assert [line.rstrip() for line in lines if line.startswith("worker")] == [
        "worker 12345 on db-1: 1234 pending, 5 polls: http://db-1:8000/purgatory/",
        r"worker ? on \x1b[2J\nworker: ? pending",
    ]
    for height, most in ((24, 4), (40, 6), (200, 16)):
        lines = lines_of(state(others=[known] * 100), height=height)
        assert sum(line.startswith("worker") for line in lines) == most
        assert f"and {100 - most} more workers" in [line.rstrip() for line in lines]
    for none in (state(), state(others=None), state(others=[])):
        assert not any(line.startswith("worker") for line in lines_of(none))


def test_killed_worker_is_silent_then_gone(monkeypatch):
    now, source = [1000.0], _source.Source("http://127.0.0.1:1/", {})
    monkeypatch.setattr(_source.time, "monotonic", lambda: now[0])

    def shown(*others):
        answer = io.BytesIO(body(others=[*others], relay={"isConnected": True, "for": 1.0}))
        answer.headers = {}
        source._opener.open = lambda *_, **__: answer
        lines = [line.rstrip() for line in lines_of(source.next())]
        return [line for line in lines if "workers, " in line or line.startswith("worker")]

    assert shown(other(8, ago=2.0)) == [
        "1 pending in 2 workers, 1 poll open",
        "worker 8 on vm: 1 pending, 1 poll",
    ]
    assert shown(other(8, ago=9.0))[1] == "worker 8 on vm: 1 pending, 1 poll, not heard for 9 s"
    now[0] += 1
    assert shown() == ["worker 8 on vm: gone, last heard 10 s ago"]
    assert shown(other(9, ago=0.0)) == [
        "1 pending in 2 workers, 1 poll open",
        "worker 9 on vm: 1 pending, 1 poll",
        "worker 8 on vm: gone, last heard 10 s ago",
    ]
    now[0] += _source.GONE_TTL
    assert shown() == []


@contextmanager
def responding(respond):
    """The URL of a server that answers with what `respond(handler)` returns: status, headers and
    body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if (answer := respond(self)) is None:
                return
            status, headers, body = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_): ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/purgatory/"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def served(*answers):
    """The URL of a server that gives these answers, each a status and a body, and a list of the
    tags that it was sent."""
    left, tags = list(answers), []

    def respond(handler):
        tags.append(handler.headers["If-None-Match"])
        status, body = left.pop(0)
        return status, {"ETag": f'"{len(tags)}"'}, body

    with responding(respond) as url:
        yield url, tags


def body(**more):
    return json.dumps(state(**more)).encode()


def test_versions_follow_tags_and_history_adds_up():
    new = body(worker={"id": "b", "pid": 8}, history=[[9]])
    first, second = body(history=[[1], [2]]), body(history=[[3]])
    answers = [(200, first), (200, second), (304, b""), (200, new)]
    with served(*answers) as (url, tags):
        source = top.Source(url, {})
        versions = [source.next() for _ in answers]
    histories = [version and version["history"] for version in versions]
    assert histories == [[[1], [2]], [[1], [2], [3]], None, [[9]]]
    assert tags == [None, '"1"', '"2"', '"2"']


def test_answers_without_tag_are_polled_with_pauses(monkeypatch):
    pauses, answers = [], [(200, {}, body())] * 3
    monkeypatch.setattr(_follow.time, "sleep", pauses.append)
    with (
        responding(lambda _: answers.pop() if answers else (403, {}, b"")) as url,
        pytest.raises(HTTPError, match="403") as refusal,
    ):
        _follow.follow(top.Source(url, {}), Console(file=io.StringIO()))
    refusal.value.close()
    assert pauses == [_follow.PAUSE] * 3


def test_query_of_the_address_is_sent_to_state():
    with served((200, body()), (200, body())) as (url, _):
        for given in (url, url.rstrip("/")):
            source = top.Source(f"{given}?token=secret", {})
            assert source.url == f"{url}state?token=secret" and source.next() is not None


def test_once_shows_a_state_or_an_error(capsys):
    answers = [(200, body()), (403, b"only\x1b here"), (200, b"[]"), (200, b"{")]
    answers += [(200, b"[" * 100_000), (404, b"Not Found")]
    with served(*answers, (200, body()), (403, b"later")) as (url, _):
        assert [top.main([url, "--once"]) for _ in answers] == [0, 1, 1, 1, 1, 1]
        assert top.main([url]) == 1  # after it has shown a state
    shown, complaints = capsys.readouterr()
    assert "worker 7" in shown
    expected = [
        r"403: only\x1b here",
        *["is not a state of purgatory.console"] * 3,
        "Not Found; is purgatory",
    ]
    lines = complaints.splitlines()
    assert "Expecting property" in lines[2]
    assert all(part in line for part, line in zip([*expected, "403: later"], lines, strict=True))
    assert top.main([url, "--once"]) == 1
    error = capsys.readouterr().err
    assert "Connection refused" in error and "urlopen" not in error
    for wrong in (["purgatory"], [url, "--header", "nonsense"]):
        with pytest.raises(SystemExit, match="2"):
            top.main(wrong)


UUIDS = [f"'replies/4c743ed6-0c04-497b-bc22-{number:012x}'" for number in range(8)]


def purgatory(**more):
    about = {"moreKeys": 0, "kind": "Job"}
    oldest = [{"keys": [key], **about, "waited": 137.2, "left": 463.1} for key in UUIDS]
    missed = [{"keys": UUIDS[:1], **about, "ago": 3.0}]
    counts = {"pending": 8, "keys": 8, "missed": 1, "withoutDeadline": 0}
    return {"name": "replies", **counts, "oldest": oldest, "missedLast": missed, **more}


@pytest.mark.parametrize("width", [80, 99, 100, 140, 200])
def test_figures_and_uuids_fit_any_terminal_width(width):
    counts = {"pending": 1_234_567, "keys": 7_654_321, "missed": 12_345}
    about = purgatory(name="a purgatory with quite a long name", **counts)
    points = [[second, 0.0, [[second, 1000 * second, 0, 0, 0]]] for second in range(300)]
    lines = lines_of(state(purgatories=[about], history=points), width)
    [line, _] = [line for line in lines if line.startswith("a purgatory")]
    assert [number for number in ("1,234,567", "1,000.0", "12,345") if number not in line] == []
    for number in range(8):
        [line] = [line for line in lines if f"{number:012x}'" in line and "missed" not in line]
        assert "Job" in line and "2.29 min" in line and "7.72 min" in line
    [missed] = [line for line in lines if "missed trigger" in line]
    assert missed.endswith("(Job), 3 s ago")
    assert max(map(len, lines)) <= width


def test_sum_is_first_and_equal_keys_one_row():
    assert cut("replies/4c743ed6-0c04-497b", 13) == "replie…4-497b"
    assert cut("short", 5) == "short"
    [first, *_] = purgatory()["oldest"]
    shown = [purgatory(oldest=[first | {"count": 18}])]
    others = [other(pid, pending=pid) for pid in (10, 20)]
    lines = lines_of(state(purgatories=shown, others=others, polls={"open": 3, "endings": {}}))
    assert lines[1].rstrip() == "38 pending in 3 workers, 5 polls open"
    assert sum(f"{UUIDS[0]} ×18  Job" in line for line in lines) == 1


@pytest.mark.parametrize("width", [80, 90, 140])
def test_cut_list_of_keys_keeps_whole_keys(width):
    keys = [f"'customer/{number:08}'" for number in range(4)]
    cut_keys = purgatory()["oldest"][0] | {"keys": keys, "moreKeys": 2, "count": 3}
    missed = purgatory()["missedLast"][0] | {"keys": keys, "moreKeys": 2}
    shown = [purgatory(oldest=[cut_keys], missedLast=[missed])]

    lines = lines_of(state(purgatories=shown), width)

    for line, end in zip(
        [line for line in lines if "customer" in line], (" (Job)", " ×3 "), strict=True
    ):
        found = re.findall(r"'[^']*'", line)
        assert found and found == keys[: len(found)]
        assert f"{found[-1]} and {6 - len(found)} more{end}" in line


def test_encodings_without_blocks_get_question_marks():
    points = [[second, 0.0, [[second, 0, 0, 0, 0]]] for second in range(9)]
    about = purgatory(name="b\xfccher")
    with served((200, body(purgatories=[about], history=points))) as (url, _):
        done = subprocess.run(
            [sys.executable, "-m", "purgatory.top", url, "--once"],
            env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "140"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "b?cher" in done.stdout


def test_a_terminal_of_80_by_24_has_everything():
    busy = [purgatory(missedLast=[]), purgatory(missedLast=[])]
    others = [other()] * 3
    relay, polls = {"isConnected": False, "for": 3.0}, {"open": 1, "endings": {"gone": 0}}
    lines = lines_of(state(purgatories=busy, others=others, relay=relay, polls=polls), 80, 24)
    assert len(lines) <= 23
    assert {"relay: AWAY for 3 s", "long polls: 1 open"} <= {line.rstrip() for line in lines}
    assert sum("Job" in line for line in lines) >= 6


def test_figures_show_their_age_without_server():
    lines = lines_of(state(at=1000.0), error="reconnecting to x", now=1012.2)
    assert "OLD FIGURES, 12 s ago" in lines[0] and lines[1] == "reconnecting to x"
    assert "live" not in lines[0]


@pytest.mark.parametrize("drips", [False, True])
def test_once_ends_though_probes_get_no_answer(drips, monkeypatch, capsys):
    monkeypatch.setattr(_source, "PROBE_TIMEOUT", 0.2)
    is_over, probes = threading.Event(), []

    def respond(handler):
        if not handler.path.endswith("/worker"):
            return 200, {}, body(others=None)
        probes.append(handler)
        while not is_over.wait(0.05):
            if drips:
                with suppress(OSError):
                    handler.wfile.write(b"X")
        return None

    with responding(respond) as url:
        try:
            assert top.main(["--once", url]) == 0
            assert len(probes) <= _source.PROBES
            source = _source.Source(url, {})
            for _ in range(3):
                assert source.probe() == 0
                assert len(source._probes) <= _source.PROBES  # with those that have not ended
        finally:
            is_over.set()
    assert "worker 7" in capsys.readouterr().out


def test_headers_are_not_sent_to_another_server(capsys):
    received = []

    def steal(handler):
        received.append(handler.headers["X-Token"])
        return 200, {}, body()

    with responding(steal) as thief, responding(lambda _: (302, {"Location": thief}, b"")) as url:
        assert top.main([url, "--once", "--header", "X-Token: secret"]) == 1
    assert received == []
    assert f"it redirects to {thief}: give that address" in capsys.readouterr().err


def leaves(value, path=()):
    """The path of each part of a state."""
    yield path
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, key))


WHOLE = state(
    history=[[1.0, 0.1, [[8, 1, 2, 3, 4]]], [2.0, 0.1, [[8, 1, 2, 3, 4]]]],
    purgatories=[purgatory(oldest=purgatory()["oldest"][:1])],
    polls={"open": 1, "endings": {"gone": 1}},
    relay={"isConnected": True, "for": 1.0},
    others=[other()],
)
FOREIGN = [None, True, "text", -1, 1e999, 10**400, [], {}, [1], {"a": 1}, [[]], "\x1b[2J"]


@pytest.mark.parametrize("path", list(leaves(WHOLE)), ids=str)
def test_foreign_json_is_refused_or_drawn_without_traceback(path):
    for foreign in FOREIGN:
        root = [json.loads(json.dumps(WHOLE))]
        *parents, last = (0, *path)
        reduce(getitem, parents, root)[last] = foreign
        answer = io.BytesIO(json.dumps(root[0]).encode())
        answer.headers = {}
        source = _source.Source("http://127.0.0.1:1/", {})
        source._opener.open = lambda *_, answer=answer, **__: answer
        with suppress(ValueError):  # which ends the program with its text
            assert "\x1b" not in "".join(lines_of(source.next()))


def test_wanted_worker_is_requested_by_name():
    asked = []

    def respond(handler):
        answer = json.dumps({"pid": 8, "host": "vm", "pending": 50, "polls": None}).encode()
        if handler.path.endswith("/worker"):
            return 200, {"Connection": "close"}, answer
        asked.append(handler.headers["Purgatory-Worker"])
        if len(asked) in (2, 3):
            return 200, {"Connection": "close"}, answer
        return 200, {}, body(worker={"id": "a", "pid": 7, "host": "v m"}, others=None)

    with responding(respond) as url:
        source = top.Source(url, {})
        assert source.next()["others"] is None
        [found] = source.next()["others"]
    assert asked == [None, "7%40v%20m", "7%40v%20m", "7%40v%20m"]
    assert (found["pid"], found["pending"]) == (8, 50)


def test_the_address_is_named_when_nothing_answers():
    with served() as (url, _):
        pass
    command = [sys.executable, "-m", "purgatory.top", f"{url}?token=secret"]
    environment = {**os.environ, "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        line = process.stdout.readline()
        process.kill()
    assert line.startswith(f"reconnecting to {url}: ") and "secret" not in line


@contextmanager
def in_a_terminal(url):
    """Runs the program in a terminal of 80 columns and 24 lines, to its end: a function that reads
    up to a text, and where keys are written."""
    terminal, its_end = pty.openpty()
    termios.tcsetwinsize(its_end, (24, 80))
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-m", "purgatory.top", url],
        stdin=its_end, stdout=its_end, stderr=its_end, env=environment,
    ) as process:  # fmt: skip
        os.close(its_end)

        def read_until(text):
            shown = b""
            while text not in shown:
                shown += os.read(terminal, 65536)

        try:
            yield read_until, terminal
            with suppress(OSError):  # Linux raises it at the end
                while os.read(terminal, 65536):
                    pass
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(terminal)


def test_w_shows_next_worker_and_q_ends():
    is_pressed = threading.Event()

    def respond(handler):
        if "If-None-Match" in handler.headers:
            is_pressed.wait(60)  # as a long poll
        wanted = handler.headers["Purgatory-Worker"] or "7%40vm"
        worker = {"id": wanted, "pid": int(wanted.partition("%")[0]), "host": "vm"}
        relay = {"isConnected": True, "for": 1.0}
        shown = body(worker=worker, others=[other(15 - worker["pid"])], relay=relay)
        return 200, {"ETag": '"1"'}, shown

    with responding(respond) as url, in_a_terminal(url) as (read_until, terminal):
        read_until(b"worker 8 on vm")
        os.write(terminal, b"w")
        read_until(b"waiting for worker 8@vm")
        is_pressed.set()
        read_until(b"worker 7 on vm")
        read_until(b"q quit")
        os.write(terminal, b"q")


def test_a_screen_longer_than_the_terminal_scrolls():
    lines = [Text(f"line {number}") for number in range(100)]
    for top_line, last in ((3, "88 more lines"), (90, "1 more line"), (91, "scroll")):
        *shown, keys = _follow.visible(lines, top_line, 10)
        assert shown == lines[top_line : top_line + 9] and keys.plain.endswith(last)
