"""The polls, the page and a relay in programs that were frozen: by PyInstaller, and in a zipapp."""

import shutil
import subprocess
import sys
import zipapp
from importlib.util import find_spec
from pathlib import Path

import pytest
from requirements import unavailable

import purgatory

PROGRAM = """
import asyncio, sys, tempfile
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from purgatory import Purgatory
from purgatory.asgi import LongPolls
from purgatory.console import console
from purgatory.relay import Relay

jobs, polls = Purgatory(), LongPolls(signals=())

async def result(request):
    return await polls.poll(request.scope).wait_for(jobs, lambda: "done", ["job"])

page = console(jobs, authorize=lambda scope: True)
app = Starlette(routes=[Route("/job", result), Mount("/page", page)])
app.add_middleware(polls.middleware)

async def get(path):
    async def receive():
        await asyncio.Event().wait()
    async def send(message):
        answer.append(message)
    answer = []
    scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "headers": [], "query_string": b"",
             "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1)}
    await app(scope, receive, send)
    return answer[0]["status"], b"".join(message["body"] for message in answer[1:])

async def main():
    print(await get("/job"))
    status, body = await get("/page/")
    print(status, b"</html>" in body)
    with tempfile.TemporaryDirectory() as folder:
        async with Relay("file://" + folder) as relay:
            print(await relay.bump("key"))

asyncio.run(main())
"""
PRINTED = ["(200, b'\"done\"')", "200 True", "1"]


def printed_by(*command: object) -> list[str]:
    done = subprocess.run(
        [str(each) for each in command],
        check=False, capture_output=True, text=True, timeout=600, env={"PATH": "", "HOME": "/nowhere"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_program_frozen_by_pyinstaller_serves_polls_and_page(tmp_path):
    if find_spec("PyInstaller") is None:
        unavailable("needs PyInstaller: pip install pyinstaller")
    source = Path(purgatory.__file__).parent
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ["--distpath", tmp_path / "dist", "--workpath", tmp_path / "work", "--specpath"]
    # The package of this tree, with its hook, wherever it is installed.
    options += [tmp_path, "--paths", source.parent, "--additional-hooks-dir", source / "_frozen"]
    command = [
        sys.executable,
        "-m",
        "PyInstaller",
        "--noconfirm",
        *options,
        tmp_path / "program.py",
    ]
    built = subprocess.run(
        [str(each) for each in command],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
    )
    assert built.returncode == 0, built.stderr
    assert printed_by(tmp_path / "dist" / "program" / "program") == PRINTED


def test_program_in_a_zipapp_serves_polls_and_page(tmp_path):
    folder = tmp_path / "program"
    ignored = shutil.ignore_patterns("*.md", "*.c", "*.so", "*.pyd", "__pycache__", "pipeline")
    shutil.copytree(Path(purgatory.__file__).parent, folder / "purgatory", ignore=ignored)
    (folder / "__main__.py").write_text(PROGRAM)
    zipapp.create_archive(folder, tmp_path / "program.pyz")
    assert printed_by(sys.executable, tmp_path / "program.pyz") == PRINTED
