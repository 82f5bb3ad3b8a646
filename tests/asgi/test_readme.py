"""`purgatory/asgi/README.md`: each of its blocks is run, and its tables match the code."""

import asyncio
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from asgi_modules import load
from asgi_requests import Request
from fastapi.testclient import TestClient
from loops import on_virtual_time
from readme_blocks import blocks

from purgatory.asgi._outcome import ANSWERS, MALFORMED, outcome_of

PAGE = Path(__file__).parents[2] / "purgatory" / "asgi" / "README.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The page's files: the first line of each block names its file."""
    codes: dict[str, str] = {}
    for block in blocks(PAGE, "python"):
        title, _, code = block.text.removeprefix("# ").partition("\n")
        codes[title] = codes.get(title, "") + code + "\n\n"
    assert [*codes] == ["app.py", "test_app.py", "plain.py"]
    for title, code in codes.items():
        (tmp_path / title).write_text(code, encoding="utf-8")
    return tmp_path


@pytest.fixture
def app(folder: Path) -> ModuleType:
    return load(folder / "app.py")


def test_its_tests_pass(folder, program):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", folder]
    options += ["-o", "asyncio_default_fixture_loop_scope=function"]
    done = program("-m", "pytest", *options, "test_app.py", cwd=folder, env=environment)
    assert "3 passed" in done.stdout


@on_virtual_time
async def test_client_that_leaves_takes_no_order(app):
    leaving, staying = (
        Request(app.app, b"wait=20", method="POST", path="/orders/next") for _ in range(2)
    )
    await asyncio.sleep(1)
    leaving.leave()
    await leaving.done()
    app.orders.put_nowait("an order")
    assert (await staying.done()).content == b'"an order"'
    late = await Request(app.app, b"wait=2", method="POST", path="/orders/next").done()
    assert (late.status, asyncio.get_running_loop().time()) == (204, 3.0)


def test_news_and_sockets_are_answered(app):
    with TestClient(app.app) as client:
        first = client.get("/news")
        assert (first.status_code, first.json()) == (200, [])
        seen = {"If-None-Match": first.headers["etag"]}
        assert client.get("/news?wait=0", headers=seen).status_code == 304
        assert client.post("/news", content="hello").status_code == 204
        second = client.get("/news?wait=20", headers=seen)
        assert (second.status_code, second.json()) == (200, ["hello"])
        client.put("/jobs/1", content="done")
        with client.websocket_connect("/jobs/1") as websocket:
            assert websocket.receive_json() == "done"


@on_virtual_time
async def test_the_news_are_streamed(app):
    app.news.append("hello")
    app.versions.bump("news")
    stream = Request(app.app, path="/news/events")
    await asyncio.sleep(1)
    assert b"data: hello" in stream.content
    app.polls.stop()
    await stream.done()


@on_virtual_time
async def test_without_a_framework_it_is_the_same(folder):
    plain = load(folder / "plain.py")
    request = Request(plain.app, b"wait=20", path="/7")
    await asyncio.sleep(1)
    plain.results["/7"] = b"done"
    plain.jobs.check_and_complete("/7")
    assert ((await request.done()).status, request.content) == (200, b"done")
    assert (await Request(plain.app, b"wait=1", path="/8").done()).status == 204


def test_readme_table_equals_answers():
    row = re.compile(r"^\| (?:`(\w+)`)? *\| (\d+) \| (\d+) \| ([^|]*)\|", re.MULTILINE)
    rows = row.findall(PAGE.read_text(encoding="utf-8"))
    shown = {name: (int(status), int(code), names.strip()) for name, status, code, names in rows}
    expected = {"": (MALFORMED.status, MALFORMED.close_code, "")}
    for ending, answer in ANSWERS.items():
        outcome = outcome_of(ending, None, {}, "wait=1", 1.0)
        sent = "".join(f"{name}: {value}\n" for name, value in outcome.headers.items())
        in_table = ("Preference-Applied", "Retry-After", "Connection: close")
        names = ", ".join(f"`{name}`" for name in in_table if name in sent)
        expected[ending.name] = (answer.status, answer.close_code, names)
    assert shown == expected
