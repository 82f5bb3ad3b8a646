"""The site: its page on the API names everything public, and the recipes of its cookbook pass their
own tests.

That it can be built, and that its links lead somewhere, is for `mkdocs build`.
"""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from readme_blocks import ROOT, blocks

import purgatory
import purgatory.relay

SITE = ROOT / ".docs"
FILE = re.compile(r"# (\w+\.py)\n")


@pytest.mark.parametrize("module", [purgatory, purgatory.relay], ids=lambda module: module.__name__)
def test_the_page_on_the_api_names_everything_public(module: ModuleType) -> None:
    name = module.__name__.rpartition(".")[2]
    page = (SITE / "pages" / "api" / f"{name}.md").read_text(encoding="utf-8")
    named = re.findall(rf"^::: {re.escape(module.__name__)}\.(\w+)$", page, re.MULTILINE)
    assert sorted(named) == module.__all__


@pytest.mark.slow
def test_the_recipes_of_the_cookbook_pass_their_tests(
    tmp_path: Path, program: Callable[..., Any]
) -> None:
    for file in (SITE / "cookbook" / "tests").glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text("utf-8"), encoding="utf-8")
    for page in sorted((SITE / "cookbook").glob("*.md")):
        for block in blocks(page, "python"):
            name = FILE.match(block.text)
            assert name is not None, (
                f"{page.name}, line {block.line}: the first line is to name the file"
            )
            file = tmp_path / name[1]
            assert not file.exists(), (
                f"{page.name}, line {block.line}: another recipe has a file of this name"
            )
            file.write_text(block.text, encoding="utf-8")
    tests = sum(
        len(re.findall(r"^def test_", file.read_text("utf-8"), re.MULTILINE))
        for file in tmp_path.glob("test_*.py")
    )
    options = (
        "-q",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
        "-o",
        "asyncio_default_fixture_loop_scope=function",
    )
    done = program("-m", "pytest", *options, "--rootdir", tmp_path, cwd=tmp_path)
    assert f"\n{tests + 2} passed" in done.stdout  # one test has three parameters
