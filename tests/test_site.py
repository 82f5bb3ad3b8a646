"""The site: its page on the API names everything public. That it can be built, and its links, is for `mkdocs build`."""

import re
from pathlib import Path

import purgatory

SITE = Path(__file__).parents[1] / ".docs"


def test_the_page_on_the_api_names_everything_public() -> None:
    page = (SITE / "pages" / "api" / "purgatory.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: purgatory\.(\w+)$", page, re.MULTILINE)
    assert sorted(named) == purgatory.__all__
