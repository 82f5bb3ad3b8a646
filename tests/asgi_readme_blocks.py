"""The Python blocks of a page in Markdown, each with the file that its first line names: `#
app.py`."""

import re
from collections.abc import Iterator
from pathlib import Path

_PYTHON = re.compile(
    r"^```python\n# (?P<title>[\w.]+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_ANY_PYTHON = re.compile(r"^```python$", re.MULTILINE)


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The title and code of each block, in order.

    Raises:
        ValueError: a block has no title.
    """
    text = page.read_text(encoding="utf-8")
    found = list(_PYTHON.finditer(text))
    if len(found) != len(_ANY_PYTHON.findall(text)):
        raise ValueError(
            f"of the {len(_ANY_PYTHON.findall(text))} blocks of {page} {len(found)} have a title"
        )
    for match in found:
        yield match["title"], match["code"]


def write_files(page: Path, folder: Path) -> list[str]:
    """Writes the files that a page's blocks make up, one after the other; their names."""
    codes: dict[str, str] = {}
    for title, code in blocks(page):
        codes[title] = codes.get(title, "") + code + "\n\n"
    for title, code in codes.items():
        (folder / title).write_text(code, encoding="utf-8")
    return list(codes)
