"""The code blocks of a page in Markdown, and a way to run them.

The Python blocks of a page are one session in one namespace, with `await` at the top level, on one
loop on virtual time, except blocks with `asyncio.run`. A comment after a `print` is its output.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from purgatory.testing import VirtualTimeLoop

ROOT = Path(__file__).parent.parent
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HAS_ITS_OWN_LOOP = re.compile(r"\basyncio\.(run|Runner)\(")
PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One code block."""

    language: str
    text: str
    line: int
    """The line of the page on which it begins."""

    @property
    def printed(self) -> list[str]:
        """The output, according to its comments."""
        return PRINTED.findall(self.text)


def parse(text: str, language: str) -> list[Block]:
    """The blocks in `language` of a text in Markdown, in order."""
    found = (
        Block(match[1], match[2], text.count("\n", 0, match.start(2)) + 1)
        for match in FENCED.finditer(text)
    )
    return [block for block in found if block.language == language]


def blocks(page: Path, language: str) -> list[Block]:
    """The blocks in `language` of a page."""
    return parse(page.read_text(encoding="utf-8"), language)


class Session:
    """Runs blocks one after the other in one namespace, `names`, on one loop."""

    def __init__(self, page: Path, runner: asyncio.Runner, **names: Any) -> None:
        self.page, self.runner = page, runner
        self.names: dict[str, Any] = {"__name__": "__main__", **names}

    def run(self, block: Block) -> list[str]:
        """Runs a block, and returns the lines that it printed."""
        padded = "\n" * (block.line - 1) + block.text  # so that errors name the line of the page
        code = compile(padded, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            if HAS_ITS_OWN_LOOP.search(block.text):
                eval(code, self.names)
            else:
                self.runner.run(self._evaluate(code))
        return output.getvalue().splitlines()

    async def _evaluate(self, code: CodeType) -> None:
        value = eval(code, self.names)
        if inspect.iscoroutine(value):
            await value


@contextlib.contextmanager
def session(page: Path, **names: Any) -> Iterator[Session]:
    """A session for the blocks of `page` on virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        yield Session(page, runner, **names)
