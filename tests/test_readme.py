"""The Python blocks of the pages run and print the output shown; links have targets, and commands
their options."""

import asyncio
import re
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from readme_blocks import ROOT, blocks, parse, session
from tiers import NIGHTLY

import purgatory
import purgatory.relay
from purgatory import OperationTimeout

README = ROOT / "README.md"
TESTING = ROOT / "purgatory" / "testing" / "README.md"
FOLDERS = [ROOT / folder for folder in ("purgatory", "examples", "tests")]
PAGES = [README, *(page for each in FOLDERS for page in sorted(each.rglob("README.md")))]
PAGES += sorted((ROOT / ".docs").glob("[cg]*/*.md"))
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
SESSIONS = [
    "README.md",
    *(f"purgatory/{folder}README.md" for folder in ("", "testing/", "journal/")),
]
FILE = re.compile(r"# (\w+\.py)\n")
COMMAND = re.compile(
    r"python3? ((?:-m purgatory\.top|-m purgatory\.\w+ \w+|tests/\w+ \w+|examples/\w+\.py)\b)([^`\n|]*)"
)
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"")


def commands() -> dict[str, set[str]]:
    """Each program that the pages call, for instance `tests/benchmarks micro`, with the options of
    these calls."""
    found: dict[str, set[str]] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for match in COMMAND.finditer(text):
            options = shlex.split(match[2], comments=True)
            found.setdefault(match[1], set()).update(
                option for option in options if option.startswith("--")
            )
    return dict(sorted(found.items()))


COMMANDS = commands()


@pytest.mark.parametrize("name", SESSIONS)
def test_python_blocks_run_and_print_shown_output(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / name
    with session(page) as running:
        for block in blocks(page, "python"):
            if FILE.match(block.text):
                continue  # a file that pytest runs: see below
            assert running.run(block) == block.printed, f"{name}, line {block.line}"


def test_replies_and_versions_of_readme_arrive():
    async def main(names: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(1, names["save"], "order", 2)
        assert await names["changed"]("order", 1) == 2

        async def send(number: int, request: str) -> None:  # answered while it still runs
            loop.call_later(0.5, names["on_message"], number, request.upper())
            await asyncio.sleep(1)

        names["send"] = send
        assert await names["call"](7, "hello") == "HELLO"
        names["on_message"] = lambda number, reply: None
        for call in (names["changed"]("order", 2), names["call"](8, "hello")):
            with pytest.raises(OperationTimeout):
                await call

    with session(README) as running:
        running.run(blocks(README, "python")[1])
        running.runner.run(main(running.names))


def test_the_web_service_of_the_front_page_answers():
    async def main(names: dict[str, Any]) -> None:
        transport = httpx2.ASGITransport(names["app"])
        async with httpx2.AsyncClient(transport=transport, base_url="http://app") as client:
            assert (await client.get("/jobs/1", headers={"Prefer": "wait=9"})).status_code == 204
            assert asyncio.get_running_loop().time() == 9
            polling = asyncio.create_task(client.get("/jobs/1?wait=20"))
            await asyncio.sleep(5)
            await client.put("/jobs/1?result=done")
            assert (await polling).json() == "done"
            assert asyncio.get_running_loop().time() == 14

    with session(README) as running:
        running.run(blocks(README, "python")[2])
        running.runner.run(main(running.names))


def test_first_example_works_in_repl(program):
    *lines, last = blocks(README, "python")[0].text.splitlines()
    assert last == "asyncio.run(main())"
    assert "end it with `await main()`" in README.read_text(encoding="utf-8")
    typed = "\n".join([*lines, "await main()", ""])
    assert ">>> ready\n" in program("-m", "asyncio", input=typed).stdout


def passes_its_tests(folder: Path, program: Callable[..., Any]) -> None:
    """Runs the tests in a folder, of which one has three parameters."""
    tests = "".join(file.read_text("utf-8") for file in folder.rglob("test_*.py"))
    count = len(re.findall(r"^ *(?:async )?def test_", tests, re.MULTILINE))
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", folder]
    options += ["--import-mode=importlib", "-o", "asyncio_default_fixture_loop_scope=function"]
    done = program("-m", "pytest", *options, "-o", "pythonpath=. modules", cwd=folder)
    assert f"\n{count + 2} passed" in done.stdout


def test_the_tests_on_the_page_about_testing_pass(tmp_path, program):
    chapters = re.split(r"^## .*$", TESTING.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for number, chapter in enumerate(chapters):
        for block in parse(chapter, "python"):
            if name := FILE.match(block.text):
                is_test = name[1].startswith(("test_", "conftest"))
                file = tmp_path / (f"chapter{number}" if is_test else "modules") / name[1]
                file.parent.mkdir(exist_ok=True)
                file.write_text(block.text, encoding="utf-8")
    passes_its_tests(tmp_path, program)


@pytest.mark.slow
def test_the_recipes_of_the_cookbook_pass_their_tests(tmp_path, program):
    cookbook = ROOT / ".docs" / "cookbook"
    for file in (cookbook / "tests").glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text("utf-8"), encoding="utf-8")
    for page in sorted(cookbook.glob("*.md")):
        for block in blocks(page, "python"):
            name = FILE.match(block.text)
            place = f"{page.name}, line {block.line}"
            assert name is not None, f"{place}: the first line is to name the file"
            file = tmp_path / name[1]
            assert not file.exists(), f"{place}: another recipe has a file of this name"
            file.write_text(block.text, encoding="utf-8")
    passes_its_tests(tmp_path, program)


@pytest.mark.parametrize("module", [purgatory, purgatory.relay], ids=lambda module: module.__name__)
def test_the_page_on_the_api_names_everything_public(module):
    name = module.__name__.rpartition(".")[2]
    page = (ROOT / ".docs" / "pages" / "api" / f"{name}.md").read_text(encoding="utf-8")
    named = re.findall(rf"^::: {re.escape(module.__name__)}\.(\w+)$", page, re.MULTILINE)
    assert sorted(named) == module.__all__


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_or_folders(name):
    page = ROOT / name
    links = [link or source for link, source in LINK.findall(page.read_text(encoding="utf-8"))]
    local = [link for link in links if not link.startswith("https://")]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_pages_have_their_options(command, monkeypatch, capsys):
    if "purgatory.pipeline" in command or "stream_orders" in command:
        pytest.importorskip("pyspark", reason="needs the extra spark: pip install -e '.[spark]'")
    monkeypatch.chdir(ROOT)
    program, *arguments = command.removeprefix("-m ").split()
    path = Path(program.replace(".", "/") if "-m" in command else program)
    if not path.suffix:
        path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    if "-m" not in command:
        monkeypatch.syspath_prepend(path.parent)
    monkeypatch.setattr(sys, "argv", [program, *arguments, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(path), run_name="__main__")
    shown = capsys.readouterr().out
    assert [option for option in COMMANDS[command] if option not in shown] == []


def test_readme_is_short_and_begins_with_quick():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 170
    first = blocks(README, "python")[0]
    quick = (ROOT / "examples" / "quick.py").read_text(encoding="utf-8")

    _, *code = filter(None, quick.splitlines())  # without its docstring
    assert [*filter(None, first.text.splitlines())] == code


# What pages and `tiers` name


TRUSTED = (ROOT / ".docs" / "guide" / "trusted.md").read_text("utf-8")
CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text("utf-8")
TESTS = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("examples/*/tests/test_*.py")]
UNDEFENDED = "a stream's checkpoint"


@pytest.mark.parametrize("place", NIGHTLY)
def test_nightly_place_and_its_exceptions_exist(place):
    files = [file for file in TESTS if str(file.relative_to(ROOT)).startswith(place)]
    assert files
    for name in filter(None, NIGHTLY[place].split("|")):
        assert any(name in file.stem or name in file.read_text("utf-8") for file in files), name


def test_places_of_promises_exist():
    named = re.findall(r"`((?:tests|examples)/[\w/]+\.py)`", CONTRIBUTING)
    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_tests_of_trust_boundaries_exist():
    named = set(re.findall(r"`(test_\w+)`(?!\])", TRUSTED))
    found = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
    assert len(named) >= 20
    assert named <= {name for file in TESTS for name in found.findall(file.read_text("utf-8"))}


def test_every_edge_has_a_file_and_a_test():
    rows = [line.strip("| ").split(" | ") for line in TRUSTED.splitlines() if line[:2] == "| "]
    edges = [row for row in rows if row[0] not in ("edge", "store")]
    assert len(edges) == 13
    for row in edges:
        assert len(row) == 5 and all(row)
        assert UNDEFENDED in row[0] or (".py`](" in row[3] and "/test_" in row[4])


def test_skipping_is_left_to_requirements():
    """Which fails where everything has to be installed."""
    by_itself = re.compile(r"pytest\.skip\(|skipif\(.*(?:which|find_spec)")
    files = (
        file for file in (ROOT / "tests").rglob("*.py") if by_itself.search(file.read_text("utf-8"))
    )
    assert {file.name for file in files} == {"requirements.py"}
