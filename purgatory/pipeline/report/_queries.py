"""The queries of ``report.sql``, and what an engine has to do with them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import pyarrow as pa

from purgatory.pipeline._files import Listing, Storage

Line = dict[str, Any]
"""A row, by the names of its columns."""
Role = Literal["view", "keep", "write", "reject", "show"]


@dataclass(frozen=True, slots=True)
class Query:
    """One of the queries. The head of ``report.sql`` says what its role means."""

    role: Role
    name: str
    text: str


class Engine(Protocol):
    """Runs the queries. What a query, `read` or `add` makes has a name, by which later queries read it."""

    def storage(self, path: str) -> Storage:
        """Where a path or a URI leads.

        Raises:
            OSError: this engine does not get there.
        """
        ...

    def replaced_by(self, files: list[str]) -> set[str]:
        """The files that those were compacted into, by the full names of both."""
        ...

    def read(self, folder: str, listings: dict[str, Listing]) -> dict[str, str]:
        """Makes the rows of a folder of journals a table of that name. Each row has its `file`.

        Args:
            folder: ``operations`` or ``checks``.
            listings: the files of each journal.

        Returns:
            The reason for each file that cannot be read. None of its rows is in the table.

        Raises:
            Vanished: a file is not there any more.
        """
        ...

    def add(self, name: str, table: pa.Table) -> None:
        """Makes a small table that queries may read."""
        ...

    def run(self, query: Query, path: str) -> list[Line]:
        """Runs a query.

        Args:
            path: where rows that are to be written go, a folder that does not exist.

        Returns:
            The rows of a query to ``show``; otherwise nothing.
        """
        ...


def _queries(text: str) -> tuple[Query, ...]:
    head = re.compile(r"^--- (\w+) (\w+)\n", re.MULTILINE)
    _, *parts = head.split(text)
    return tuple(Query(role, name, body.strip()) for role, name, body in zip(*[iter(parts)] * 3, strict=True))


QUERIES: Final = _queries(Path(__file__).with_name("report.sql").read_text("utf-8"))
TABLES: Final = tuple(each.name for each in QUERIES if each.role == "write")
"""The tables of a report."""
REJECTED: Final = tuple(each.name for each in QUERIES if each.role == "reject")
