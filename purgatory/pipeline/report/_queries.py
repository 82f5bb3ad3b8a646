"""The queries of ``rows.sql`` and ``report.sql``, and what an engine does with them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

import pyarrow as pa

from purgatory.pipeline._reading import Source
from purgatory.pipeline.report._durations import step_of
from purgatory.pipeline.report._window import Window, window_of

Line = dict[str, Any]
"""A row, by the names of its columns."""
Role = Literal["rule", "view", "rows", "keep", "small", "write", "reject", "show"]

NUMBER: Final = re.compile(r"\{(\w+)\}")
COPIES: Final = {"copies": "census", "copies_of_checks": "census_of_checks"}
"""The numbers of copies, and the tables with them."""
SHOWN_RUNS: Final = 8
"""The runs that the page can show by themselves; `run` of all others is this number."""


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
        text = NUMBER.sub(lambda found: str(numbers[found[1]]), self.text)
        return Query(self.role, self.name, text)


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


class Engine(Source, Protocol):
    """Computes the sums of a report. `read` makes rows available to it."""

    steps: int
    """The number of calls of `step` in `sums`."""

    def sums(self, work: str, step: "Step") -> tuple[dict[str, list[Line]], Page]:
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


class Step(Protocol):
    """Shows the next step."""

    def __call__(self, what: str, /) -> None: ...


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


ROWS: Final = tuple(_queries("rows.sql"))
REPORT: Final = tuple(_queries("report.sql"))
TABLES: Final = tuple(each.name for each in (*ROWS, *REPORT) if each.role == "write")
"""The tables of a report."""
REJECTED: Final = tuple(each.name for each in ROWS if each.role == "reject")


def copies_in(census: pa.Table) -> int:
    """The number of copies, of a table of `COPIES`; some of them may differ in what is compared."""
    return int(sum(census["copies"].to_pylist()))


SPARK_WORDS: Final = {
    r"list_count\(keys\) < len\(keys\)": "array_contains(keys, CAST(X'FF' AS STRING)) IS NULL",
    r"\[([^\]]*)\]": r"array(\1)",
    r"unnest\(generate_series\(": "explode(sequence(",
    r"unnest\(": "explode(",
    r"\blen\(": "size(",
    r"epoch_us\(": "unix_micros(",
    r"make_timestamptz\(": "timestamp_micros(",
    r"quantile_cont\(": "percentile(",
    r"list_extract\(": "element_at(",
    r"EXCLUDE": "EXCEPT",
    r"//": "DIV",
}
"""The words that Spark calls by other names. A null key is found without a lambda, which Spark would
not compile: no text contains the byte FF."""


def on_spark(text: str) -> str:
    """The text of a query for Spark."""
    for word, spark in SPARK_WORDS.items():
        text = re.sub(word, spark, text)
    return text
