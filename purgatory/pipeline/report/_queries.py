"""The queries of ``rows.sql`` and ``report.sql``, and what an engine does with them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

import pyarrow as pa

from purgatory.pipeline._reading import Source
from purgatory.pipeline.report._window import Window

Line = dict[str, Any]
"""A row, by the names of its columns."""
Role = Literal["rule", "view", "keep", "write", "reject", "show"]


@dataclass(frozen=True, slots=True)
class Query:
    """A named query. The head of ``rows.sql`` explains the roles."""

    role: Role
    name: str
    text: str

    @property
    def place(self) -> str:
        """The folder of a table that is written, within the folder of the report."""
        folder = {"write": "tables", "reject": "rejected"}.get(self.role, "")
        return f"{folder}/{self.name.removeprefix('rejected_')}"


class Shown(NamedTuple):
    """The part of an engine's rows that the page shows."""

    lines: dict[str, list[Line]]
    """The rows of queries to ``show``, by the name of the query."""
    window: Window
    runs: list[str]
    """The runs that the page can show by themselves, the largest first."""


class Engine(Source, Protocol):
    """Computes the sums of a report. `read` makes rows available to it."""

    steps: int
    """The number of calls of `step` in `sums`."""

    def sums(self, work: str, step: "Step") -> Shown:
        """Computes everything that needs the rows: what ``rows.sql`` defines.

        Writes tables and rejected rows to `work`, and makes the tables available to `run` that
        ``report.sql`` needs.

        Raises:
            Vanished: a file of a journal was deleted meanwhile.
        """
        ...

    def add(self, name: str, table: pa.Table) -> None:
        """Makes a small table available to `run`."""
        ...

    def run(self, query: Query, work: str) -> list[Line]:
        """Runs a query of ``report.sql``.

        Args:
            work: a folder; a table is written to `Query.place` in it.

        Returns:
            The rows of a query to ``show``; otherwise nothing.
        """
        ...


class Step(Protocol):
    """Shows the next step."""

    def __call__(self, what: str, /) -> None: ...


def _queries(file: str) -> list[Query]:
    text = Path(__file__).with_name(file).read_text("utf-8")
    _, *parts = re.split(r"^--- (\w+) (\w+)\n", text, flags=re.MULTILINE)
    return [
        Query(role, name, re.sub(r"^--.*\n", "", body, flags=re.MULTILINE).strip())
        for role, name, body in zip(*[iter(parts)] * 3, strict=True)
    ]


_READ: Final = _queries("rows.sql")
RULES: Final = {each.name: each.text for each in _READ if each.role == "rule"}
"""The expressions that both engines use."""


def with_rules(text: str) -> str:
    """The text with each rule in the place of its name."""
    return re.sub(r"\{(\w+)\}", lambda found: RULES[found[1]], text)


ROWS: Final = tuple(
    Query(each.role, each.name, with_rules(each.text)) for each in _READ if each.role != "rule"
)
REPORT: Final = tuple(_queries("report.sql"))
TABLES: Final = tuple(each.name for each in (*ROWS, *REPORT) if each.role == "write")
"""The tables of a report."""
REJECTED: Final = tuple(each.name for each in ROWS if each.role == "reject")
