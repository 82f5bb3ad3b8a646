"""The queries of ``rows.sql`` and ``report.sql``, what an engine does with them, and the time and the
lines that the page shows."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

import pyarrow as pa

from purgatory.pipeline._files import Storage
from purgatory.pipeline._snapshot import Snapshot

Line = dict[str, Any]
"""A row, by the names of its columns."""
Lines = Mapping[str, list[Line]]
"""Rows of several queries, by their names."""
Step = Callable[[str], None]
"""Shows the next step."""
Role = Literal["rule", "view", "rows", "keep", "small", "write", "reject", "show", "spark"]

NUMBER: Final = re.compile(r"\{(\w+)\}")
CENSUSES: Final = {
    "census": ("copies", "rejected"),
    "census_of_checks": ("copies_of_checks", "rejected_checks"),
}
"""The tables that the first numbers come from, and the numbers."""
SECOND: Final = 1_000_000
"""A second in microseconds, the unit of all times and lengths here."""
Hour = dict[str, Any]
"""An hour: its number since 1970 (`hour`), the number of `starts` and `ends`, the `first` and the
`last`."""

SPANS: Final = 240
"""The most spans that the time is divided into."""
OUTLIERS: Final = 0.01
"""The share of events at each end that is left out if the window gets `SHORTER` times shorter: a
clock was wrong, or an operation waited for a year."""
SHORTER: Final = 20
HOUR: Final = 3600 * SECOND
_LENGTHS: Final = (
    *(factor * unit for unit in (1_000, 10_000, 100_000) for factor in (1, 2, 5)),
    *(seconds * SECOND for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)),
    *(hours * HOUR for hours in (1, 2, 3, 6, 12, 24, 48, 168)),
)
EDGES: Final = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)
"""The first tenths of each step of a power of ten."""
MOST: Final = 79
"""The last step, which has all longer waits, too."""
SHOWN_RUNS: Final = 8
"""The runs that the page can show by themselves; `run` of all further ones is this number."""


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

    @property
    def numbers(self) -> set[str]:
        """The names of the numbers that it needs."""
        return {*NUMBER.findall(self.text)}

    def with_numbers(self, numbers: Mapping[str, int]) -> "Query":
        """The query with its numbers."""
        text = NUMBER.sub(lambda found: f"CAST({numbers[found[1]]} AS BIGINT)", self.text)
        return Query(self.role, self.name, text)


@dataclass(frozen=True, slots=True)
class Window:
    """The time that the page shows, in spans of equal length."""

    start: int
    width: int
    """The length of a span."""
    count: int


def window_of(hours: list[Hour]) -> Window:
    """The time of all events, without outliers.

    Args:
        hours: the hours with events.
    """
    if not hours:
        return Window(0, SECOND, 1)
    hours = sorted(hours, key=itemgetter("hour"))
    inner = _without_outliers(_without_outliers(hours[::-1])[::-1])
    shown = inner if SHORTER * _length(inner) < _length(hours) else hours
    length = _length(shown)
    width = next(
        (each for each in _LENGTHS if each * SPANS >= length),
        -(-length // (SPANS * 24 * HOUR)) * 24 * HOUR,
    )
    start = shown[0]["first"] // width * width
    return Window(start, width, (shown[-1]["last"] - start) // width + 1)


def _without_outliers(hours: list[Hour]) -> list[Hour]:
    allowed = OUTLIERS * sum(map(_events, hours))
    for place, hour in enumerate(hours):
        allowed -= _events(hour)
        if allowed < 0:
            return hours[place:]
    return hours


def _events(hour: Hour) -> int:
    return int(hour["starts"] + hour["ends"])


def _length(hours: list[Hour]) -> int:
    return int(hours[-1]["last"] - hours[0]["first"]) + 1


class Page(NamedTuple):
    """The time and the runs that the page shows."""

    window: Window
    runs: list[str]
    """The runs that the page can show by themselves, the largest first."""

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers of the queries."""
        start, width, count = self.window.start, self.window.width, self.window.count
        return {"start": start, "width": width, "count": count, "runs": len(self.runs)}

    @classmethod
    def of(cls, hours: pa.Table, runs: pa.Table) -> "Page":
        """The page of the tables `hours` and `runs`."""
        numbered = {line["run"]: line["run_id"] for line in runs.to_pylist()}
        return cls(
            window_of(hours.to_pylist()),
            [numbered[run] for run in sorted(numbered) if run < SHOWN_RUNS],
        )


class Summary(NamedTuple):
    """What the page shows."""

    lines: Lines
    """The rows of the queries to ``show`` of ``rows.sql`` and ``report.sql``, by the names of the
    queries."""
    page: Page


class Engine(Protocol):
    """Reads the rows of journals, and computes the sums of a report."""

    def storage(self, path: str) -> Storage:
        """The file system of a path or a URI."""
        ...

    def read(self, snapshot: Snapshot) -> dict[str, str]:
        """Reads the rows of journals. Each row has its `file`.

        Returns:
            The reason for each file that cannot be read. None of its rows counts.

        Raises:
            Vanished: a file was deleted meanwhile.
        """
        ...

    def sums(self, work: str, step: Step) -> tuple[dict[str, list[Line]], Page]:
        """Computes everything that needs the rows: what ``rows.sql`` defines.

        Writes tables and rejected rows to `work`, and makes the tables available to `run` that
        ``report.sql`` needs.

        Returns:
            The rows of queries to ``show``, by the name of the query.

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


def step_of(lead: str, power: str) -> str:
    """The step of a length, as an expression of SQL; the step of a second is 0.

    Args:
        lead: the first two digits of the length in microseconds.
        power: the exponent of its first digit.
    """
    edges = " + ".join(f"CAST({lead} >= {edge} AS INT)" for edge in EDGES[1:])
    return f"CASE WHEN {lead} IS NOT NULL THEN least(10 * {power} - 60 + {edges}, {MOST}) END"


def _queries(file: str) -> list[Query]:
    text = Path(__file__).with_name(file).read_text("utf-8")
    _, *parts = re.split(r"^--- (\w+) (\w+)\n", text, flags=re.MULTILINE)
    read = [
        Query(role, name, re.sub(r"^ *--.*\n", "", body, flags=re.MULTILINE).strip())
        for role, name, body in zip(*[iter(parts)] * 3, strict=True)
    ]
    rules = {each.name: each.text for each in read if each.role == "rule"} | {
        f"{name}_step": step_of(f"{name}_lead", f"{name}_power") for name in ("wait", "late")
    }
    return [
        Query(
            each.role,
            each.name,
            re.sub(r"\{(\w+)\}", lambda found: rules.get(found[1], found[0]), each.text),
        )
        for each in read
        if each.role != "rule"
    ]


_OF_ROWS: Final = _queries("rows.sql")
ROWS: Final = tuple(each for each in _OF_ROWS if each.role != "spark")
REPORT: Final = tuple(_queries("report.sql"))
TABLES: Final = tuple(each.name for each in (*ROWS, *REPORT) if each.role == "write")
"""The tables of a report."""
REJECTED: Final = tuple(each.name for each in ROWS if each.role == "reject")


def numbers_in(name: str, census: pa.Table) -> dict[str, int]:
    """The numbers that a table of `CENSUSES` has: of copies, some of which may differ in compared
    columns, and of reasons to reject rows."""
    lines = census.to_pylist()
    reasons = [line for line in lines if line["what"] == "reason" and line["reason"] is not None]
    counts = (int(sum(line["copies"] for line in lines)), len(reasons))
    return dict(zip(CENSUSES[name], counts, strict=True))


ON_SPARK: Final = {
    each.name: Query("view", each.name, each.text) for each in _OF_ROWS if each.role == "spark"
}
"""The queries that Spark has a text of its own for."""
SPARK_WORDS: Final = {
    r"list_count\(keys\) < size\(keys\)": "array_contains(keys, CAST(X'FF' AS STRING)) IS NULL",
    r"\[([^\]]*)\]": r"array(\1)",
    r"EXCLUDE": "EXCEPT",
    r"//": "DIV",
}
"""What Spark spells otherwise, and is no function: for functions DuckDB has macros. sqlglot would
make discrete quantiles of `percentile`, without an error. A null key is found without a lambda,
which Spark would not compile: no text contains the byte FF."""


def on_spark(text: str) -> str:
    """The text of a query for Spark."""
    for word, spark in SPARK_WORDS.items():
        text = re.sub(word, spark, text)
    return text
