"""What `python -m purgatory.top` shows of a state; the tests of the page cover how it follows a server."""

import io
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from rich.console import Console

from purgatory import top

BOUNDS = [0.001, 1.0, 8.0, None]


def histogram(*counts):
    return {"bounds": BOUNDS, "counts": list(counts), "sum": 0.0}


@pytest.mark.parametrize(
    ("counted", "share", "words"),
    [
        ([(1, 0, 0, 0)], 0.5, "≤ 1 ms"),
        ([(1, 1, 0, 0)], 0.5, "≤ 1 ms"),
        ([(1, 1, 1, 0)], 0.5, "≤ 1 s"),
        ([(99, 0, 1, 0)], 0.99, "≤ 1 ms"),
        ([(98, 0, 2, 0)], 0.99, "≤ 8 s"),
        ([(0, 0, 0, 1)], 0.5, "> 8 s"),
        ([(1, 0, 0, 0), (0, 0, 2, 0)], 0.5, "≤ 8 s"),
        ([(0, 0, 0, 0)], 0.5, "–"),
    ],
)
def test_a_quantile_is_shown_as_the_bound_that_it_does_not_exceed(counted, share, words):
    assert top.quantile([histogram(*counts) for counts in counted], share) == words


def test_the_waits_of_all_kinds_are_shown_by_outcome():
    kinds = [
        {"waits": {"completed": histogram(1, 0, 0, 0), "expired": histogram(0, 0, 1, 0)}, "lateness": histogram(1, 0, 0, 0)},
        {"waits": {"completed": histogram(0, 2, 0, 0)}, "lateness": histogram(0, 0, 0, 0)},
    ]
    assert top.distributions(kinds).plain == (
        "waited, completed: half ≤ 1 s, 99 % ≤ 1 s; expired: half ≤ 8 s, 99 % ≤ 8 s; late after the deadline: 99 % ≤ 1 ms"
    )
    assert top.distributions([{"waits": {}, "lateness": histogram(0, 0, 0, 0)}]).plain == "none has waited yet"


def state(**more):
    return {"worker": {"id": "a", "pid": 7}, "history": [], "purgatories": [], "polls": None, "relay": None, **more}


def shown(state):
    console = Console(file=io.StringIO(), width=120)
    console.print(top.screen(state, "", 40))
    return console.file.getvalue()


def test_other_workers_are_listed_and_their_control_characters_are_replaced():
    known = {
        "pid": 12345,
        "host": "db-1",
        "began": 1.0,
        "pending": 1234,
        "polls": 5,
        "address": "http://db-1:8000/purgatory/",
        "ago": 1.0,
    }
    rude = {"pid": None, "host": "\x1b[2J\nworker", "began": None, "pending": None, "polls": None, "address": None, "ago": 1.0}
    lines = shown(state(others=[known, rude])).splitlines()
    assert [line.rstrip() for line in lines if line.startswith("worker")] == [
        "worker 12345 on db-1: 1234 pending, 5 polls: http://db-1:8000/purgatory/",
        "worker ? on \ufffd[2J\ufffdworker: ? pending",
    ]
    assert len([line for line in shown(state(others=[known] * 100)).splitlines() if line.startswith("worker")]) == 16
    for none in (state(), state(others=None), state(others=[])):
        assert "worker" not in shown(none).partition("\n")[2]


def test_control_characters_of_a_foreign_server_are_replaced():
    rude = "\x1b]0;title\x07"
    other = dict.fromkeys(("pid", "host", "began", "pending", "polls", "address"), rude)
    lines = shown(state(worker={"id": "a", "pid": rude}, others=[other]))
    assert "\x1b" not in lines and lines.count("title") == 6
    assert top.keys_of({"keys": [rude], "moreKeys": rude}) == "\ufffd]0;title\ufffd and \ufffd]0;title\ufffd more"


@contextmanager
def served(*answers):
    """The URL of a server that gives these answers, each a status and a body, and a list of the tags that it was sent."""
    left, tags = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            tags.append(self.headers["If-None-Match"])
            status, body = left.pop(0)
            self.send_response(status)
            self.send_header("ETag", f'"{len(tags)}"')
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_): ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/purgatory/", tags
        finally:
            server.shutdown()
            thread.join()


def body(**more):
    return json.dumps(state(**more)).encode()


def test_each_version_is_asked_for_by_the_tag_of_the_last_and_the_history_of_one_worker_adds_up():
    other = body(worker={"id": "b", "pid": 8}, history=[[9]])
    answers = [(200, body(history=[[1], [2]])), (200, body(history=[[3]])), (304, b""), (200, other)]
    with served(*answers) as (url, tags):
        source = top.Source(url, {})
        versions = [source.next() for _ in answers]
    assert [version and version["history"] for version in versions] == [[[1], [2]], [[1], [2], [3]], None, [[9]]]
    assert tags == [None, '"1"', '"2"', '"2"']


def test_a_query_of_the_address_is_sent_for_the_state_of_the_page():
    with served((200, body()), (200, body())) as (url, _):
        for given in (url, url.rstrip("/")):
            source = top.Source(f"{given}?token=secret", {})
            assert source.url == f"{url}state?token=secret" and source.next() is not None


def test_the_command_line_shows_a_state_once_or_says_why_it_cannot(capsys):
    with served((200, body()), (403, b"only\x1b here"), (200, b"[]"), (200, b"{")) as (url, _):
        assert [top.main([url, "--once"]) for _ in range(4)] == [0, 1, 1, 1]
    shown, complaints = capsys.readouterr()
    assert "worker 7" in shown
    assert "403: only\ufffd here" in complaints and "is not of a page" in complaints and "Expecting property" in complaints
    assert top.main([url, "--once"]) == 1 and "refused" in capsys.readouterr().err
    for wrong in (["purgatory"], [url, "--header", "nonsense"]):
        with pytest.raises(SystemExit, match="2"):
            top.main(wrong)


@pytest.mark.parametrize("width", [80, 99, 100, 140, 200])
def test_every_number_is_whole_in_the_columns_that_the_terminal_has(width):
    purgatory = {"name": "a purgatory with quite a long name", "pending": 1_234_567, "keys": 7_654_321, "missed": 12_345}
    points = [[second, 0.0, [[second, 1000 * second, 0, 0, 0]]] for second in range(300)]
    console = Console(file=io.StringIO(), width=width)
    console.print(top.screen(state(purgatories=[purgatory], history=points), "", 40, width))
    [line] = [line for line in console.file.getvalue().splitlines() if line.startswith("a purgatory")]
    assert line.startswith("a purgatory wit")
    assert [number for number in ("1,234,567", "1,000.0", "12,345", "7,654,321") if number not in line] == []
    assert max(map(len, console.file.getvalue().splitlines())) <= width


def test_it_ends_when_the_server_refuses_and_says_why(capsys):
    with served((200, body()), (403, b"only here: the peer is another machine")) as (url, _):
        assert top.main([url]) == 1
    assert "403: only here: the peer is another machine" in capsys.readouterr().err
