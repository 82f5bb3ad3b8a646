"""Every Python block of the pages runs and prints what it says; every link on them and every command leads somewhere."""

import ast
import asyncio
import re
import runpy
import shlex
import subprocess
import sys
from codeop import CommandCompiler
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
from readme_blocks import ROOT, blocks, session

from purgatory import OperationTimeout

README = ROOT / "README.md"
TESTING = ROOT / "purgatory" / "TESTING.md"
PAGES = [README, TESTING, *sorted((ROOT / "purgatory").rglob("README.md")), ROOT / "examples" / "README.md"]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
SESSIONS = ["README.md", "purgatory/README.md", "purgatory/TESTING.md", "purgatory/journal/README.md"]
OPTIONS = ["-o", "asyncio_default_fixture_loop_scope=function"]  # which pytest-asyncio asks for
FILE = re.compile(r"# (\w+\.py)\n")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"")


def commands() -> list[tuple[tuple[str, ...], list[str]]]:
    """Each program that the pages call, `-m purgatory.bench micro` say, with the options that it is called with."""
    found: dict[tuple[str, ...], set[str]] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for match in re.finditer(r"python3? ((?:-m purgatory\.\w+ \w+|examples/\w+\.py)[^`\n|]*)", text):
            words = shlex.split(match[1], comments=True)
            length = 3 if words[0] == "-m" else 1
            found.setdefault(tuple(words[:length]), set()).update(word for word in words if word.startswith("--"))
    return [(program, sorted(options)) for program, options in sorted(found.items())]


@pytest.mark.parametrize("name", SESSIONS)
def test_the_python_blocks_of_a_page_run_and_print_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / name
    with session(page) as running:
        for block in blocks(page, "python"):
            if FILE.match(block.text):
                continue  # one of the files that pytest runs: see below
            here = replace(block, text=block.text.replace("/run/app", str(tmp_path)))
            assert running.run(here) == block.printed, f"{name}, line {block.line}"


def test_the_three_jobs_of_the_front_page_are_done() -> None:
    async def main(names: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(1, names["write"], "hello")
        assert await names["read"](0) == ["hello"]
        loop.call_later(1, names["save"], "order", 2)
        assert await names["changed"]("order", 1) == 2
        names["send"] = lambda number, request: loop.call_later(1, names["on_message"], number, request.upper())
        assert await names["call"](7, "hello") == "HELLO"
        names["send"] = lambda number, request: None
        for call in (names["read"](1), names["changed"]("order", 2), names["call"](8, "hello")):
            with pytest.raises(OperationTimeout):
                await call

    with session(README) as running:
        running.run(blocks(README, "python")[1])
        running.runner.run(main(running.names))


def test_the_web_service_of_the_front_page_answers() -> None:
    async def main(names: dict[str, Any]) -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(names["app"]), base_url="http://app") as client:
            assert (await client.get("/jobs/1", headers={"Prefer": "wait=9"})).status_code == 204
            assert asyncio.get_running_loop().time() == 9
            polling = asyncio.create_task(client.get("/jobs/1?wait=20"))
            await asyncio.sleep(5)
            names["results"][1] = "done"
            names["jobs"].check_and_complete(1)
            assert (await polling).json() == "done"
            assert asyncio.get_running_loop().time() == 14

    with session(README) as running:
        running.run(blocks(README, "python")[2])
        running.runner.run(main(running.names))


def test_pasted_into_a_repl_the_first_example_works_as_well() -> None:
    *lines, last = blocks(README, "python")[0].text.splitlines()
    assert last == "asyncio.run(main())"
    assert "end it with `await main()`" in README.read_text(encoding="utf-8")
    read = CommandCompiler()  # as `python -m asyncio` does: line by line, and a blank line ends a function
    read.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    printed, pending = [], []
    with session(README) as running:
        for line in [*lines, "await main()"]:
            pending.append(line)
            code = read("\n".join(pending))
            if code is not None:
                printed += running.execute(code)
                pending.clear()
    assert (pending, printed) == ([], ["ready"])


def test_what_the_page_about_testing_shows_passes(tmp_path: Path) -> None:
    common, *chapters = re.split(r"^## .*$", TESTING.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for number, chapter in enumerate(chapters):
        files = {**files_of(common), **files_of(chapter)}
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        expected = sum(text.count("\ndef test_") + text.count("\nasync def test_") for text in files.values())
        if expected:
            command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *OPTIONS]
            run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200, cwd=folder)
            assert run.returncode == 0, run.stdout + run.stderr
            assert "skipped" not in run.stdout


def files_of(chapter: str) -> dict[str, str]:
    """The Python blocks of a chapter that begin with the name of their file."""
    return {
        match[2]: match[1] for match in re.finditer(r"^```python\n(# (\w+\.py)\n.*?)^```$", chapter, re.MULTILINE | re.DOTALL)
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_link_of_a_page_leads_to_a_file_or_folder(name: str) -> None:
    page = ROOT / name
    links = [link or source for link, source in LINK.findall(page.read_text(encoding="utf-8"))]
    missing = [link for link in links if not link.startswith("https://") and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize(("program", "options"), commands(), ids=" ".join)
def test_every_command_of_a_page_has_the_options_that_it_is_called_with(program: tuple[str, ...], options: list[str]) -> None:
    if "purgatory.pipeline" in program or program == ("examples/stream_orders.py",):
        pytest.importorskip("pyspark", reason="needs the extra spark: pip install -e '.[spark]'")
    command = [sys.executable, *program, "--help"]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200, cwd=ROOT)
    assert [option for option in options if option not in run.stdout] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_picture_is_what_its_program_draws(theme: str) -> None:
    drawn = runpy.run_path(str(ROOT / ".pictures" / "waits.py"))["picture"](theme)
    assert (ROOT / ".pictures" / f"waits-{theme}.svg").read_text(encoding="utf-8") == drawn
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_front_page_is_short_and_its_first_example_is_the_quick_one() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 170
    first = blocks(README, "python")[0]
    quick = (ROOT / "examples" / "quick.py").read_text(encoding="utf-8")

    def without_blank_lines(source: str) -> list[str]:
        return [line for line in source.splitlines() if line]

    assert without_blank_lines(first.text) == without_blank_lines(quick)[1:]  # without its docstring
