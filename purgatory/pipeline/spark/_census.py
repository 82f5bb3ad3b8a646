"""The first pass over the rows of a journal. It finds copies, runs, hours and rejected rows, in one
job.

Copies of an operation are found without a shuffle of all ids. Ids of a run are divided into blocks
of 64. A task counts the rows of each block, and sets a bit for each id:

    ids 0, 1, 1, 5 of run "a"    block 0: 4 rows, bits 0b100011, so one row is a copy

Only these counts are shuffled, some N/64 rows. If copies exist, only the rows of blocks with copies
are compared. Checks are counted in the same way, by the second.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from purgatory.pipeline._schemas import FOLDERS
from purgatory.pipeline.report._queries import RULES

HOUR: Final = 3_600_000_000
"""In microseconds."""
HAS_NULL_KEY: Final = "array_contains(keys, CAST(X'FF' AS STRING)) IS NULL"
"""Null if a key is null and none is that text, which is no UTF-8. Spark compiles it, unlike
`array_compact`, which has a lambda."""
INSTANTS: Final = {
    "operations": {
        "started": "unix_micros(started_at)",
        "ended": "unix_micros(ended_at)",
        "has_null_key": HAS_NULL_KEY,
    },
    "checks": {"instant": "unix_micros(second)"},
}
TEXTS: Final = {
    "operations": "run_id, purgatory, kind, outcome, ended_by, keys",
    "checks": "run_id, purgatory, key",
}
IDENTITY: Final = {
    "operations": ("run_id", "operation_id DIV 64", "operation_id % 64"),
    "checks": (
        "concat_ws(chr(0), run_id, purgatory, key, part)",
        "instant DIV 64000000",
        "instant DIV 1000000 % 64",
    ),
}
"""What identifies a row: a name, a block of 64, and a place in it. Equal rows have equal places."""
BLOCKS: Final = {
    "operations": ("run_id", "operation_id DIV 64 AS block"),
    "checks": ("run_id", "purgatory", "key", "part", "instant DIV 64000000 AS block"),
}


class Run(NamedTuple):
    """A run. Instants are in microseconds."""

    run_id: str
    ids: int
    operations: int
    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class Census:
    """The result of the first pass."""

    rows: dict[str | None, int]
    """The rows by the reason why they are rejected; `None` for rows that are not."""
    copies: int
    runs: list[Run]
    """All runs, if no operation has copies."""
    hours: list[dict[str, Any]]
    """The lines of the query `hours`, if no operation has copies."""
    suspicious: list[str]
    """The files with text that is not UTF-8, or with a column that has no value."""
    seen: set[str]
    """The files that have rows."""


def judged(rows: DataFrame, folder: str) -> DataFrame:
    """The rows, with their instants in microseconds, and the `reason` why each is rejected."""
    added = [f"{text} AS {name}" for name, text in INSTANTS[folder].items()]
    return rows.selectExpr("*", *added).withColumn("reason", F.expr(RULES[f"reason_of_{folder}"]))


def take_census(rows: DataFrame, folder: str) -> Census:
    """Counts the rows of `judged`. One job."""
    names = [field.name for field in FOLDERS[folder] if field.name != "part"]
    filled = " + ".join(f"IF({name} IS NULL, 0, {1 << bit})" for bit, name in enumerate(names))
    name, block, place = IDENTITY[folder]
    times = ("started", "ended") if folder == "operations" else ("instant", "instant")
    first = rows.selectExpr(
        "file",
        "reason",
        f"IF(reason IS NULL, {name}, NULL) AS name",
        f"IF(reason IS NULL, {block}, NULL) AS block",
        f"IF(reason IS NULL, shiftleft(1L, CAST({place} AS INT)), NULL) AS bit",
        f"IF(reason IS NULL, {'operation_id' if folder == 'operations' else '0L'}, NULL) AS id",
        f"IF(reason IS NULL, {times[0]}, NULL) AS s",
        f"IF(reason IS NULL, {times[1]}, NULL) AS e",
        f"{filled} AS filled",
        f"is_valid_utf8(concat_ws(chr(0), {TEXTS[folder]})) AS is_text",
    )
    hours = "s DIV {0} AS sh, e DIV {0} AS eh" if folder == "operations" else "0L AS sh, 0L AS eh"
    blocks = (
        first.selectExpr("*", *hours.format(f"{HOUR}L").split(", "))
        .groupBy("file", "reason", "name", "block", "sh", "eh")
        .agg(
            *map(
                F.expr,
                (
                    "count(*) AS n",
                    "bit_or(bit) AS bits",
                    "max(id) AS top",
                    "count(s) AS ns",
                    "count(e) AS ne",
                    "min(s) AS s0",
                    "max(s) AS s1",
                    "min(e) AS e0",
                    "max(e) AS e1",
                    "bit_or(filled) AS filled",
                    "bool_and(is_text) AS is_text",
                ),
            )
        )
    )
    of_hours = (
        ("IF(sh IS NULL", "'hour'", "CAST(sh AS STRING)", "ns", "s0", "s1"),
        ("IF(eh IS NULL", "'hour'", "CAST(eh AS STRING)", "ne", "e0", "e1"),
    )
    lines = [
        _line("IF(reason IS NOT NULL", "'run'", "name", "n", "least(s0, e0)", "greatest(s1, e1)", "block", "bits"),
        *(_line(*each) for each in of_hours if folder == "operations"),
        _line("IF(false", "'reason'", "reason", "n"),
        _line("IF(false", "'file'", "file", "n"),
    ]  # fmt: skip
    counted = (
        blocks.selectExpr(f"inline(filter(array({', '.join(lines)}), line -> line IS NOT NULL))")
        .groupBy("what", "name", "block")
        .agg(
            *map(
                F.expr,
                (
                    "sum(n) AS n",
                    "sum(n) - bit_count(bit_or(bits)) AS copies",
                    "max(top) AS top",
                    "min(first) AS first",
                    "max(last) AS last",
                    "bit_or(filled) AS filled",
                    "bool_and(is_text) AS is_text",
                ),
            )
        )
    )
    if folder == "checks":  # whose names are many, and of no interest
        counted = counted.withColumn("name", F.expr("IF(what = 'run', NULL, name)"))
    found: dict[str, list[Any]] = {"run": [], "hour": [], "reason": [], "file": []}
    totals = counted.groupBy("what", "name").agg(
        *map(
            F.expr,
            (
                "sum(n) AS n",
                "sum(copies) AS copies",
                "max(top) AS top",
                "min(first) AS first",
                "max(last) AS last",
                "bit_or(filled) AS filled",
                "bool_and(is_text) AS is_text",
            ),
        )
    )
    for line in totals.collect():
        found[line.what].append(line)
    whole = (1 << len(names)) - 1
    return Census(
        {line.name: line.n for line in found["reason"]},
        sum(line.copies for line in found["run"]),
        [
            Run(line.name, line.top + 1, line.n, line.first, line.last)
            for line in found["run"]
            if folder == "operations"
        ],
        hours_of(found["hour"]),
        [line.name for line in found["file"] if line.filled != whole or not line.is_text],
        {line.name for line in found["file"]},
    )


def hours_of(lines: Iterable[Any]) -> list[dict[str, Any]]:
    """Lines of the query `hours`, in order."""
    hours = [
        {"hour": int(line.name), "events": line.n, "first": line.first, "last": line.last}
        for line in lines
    ]
    return sorted(hours, key=lambda hour: int(hour["hour"]))


def _line(
    unless: str,
    what: str,
    name: str,
    n: str,
    first: str = "NULL",
    last: str = "NULL",
    block: str = "NULL",
    bits: str = "NULL",
) -> str:
    return (
        f"{unless}, NULL, named_struct('what', {what}, 'name', {name}, 'n', {n}, 'first', "
        f"CAST({first} AS BIGINT), "
        f"'last', CAST({last} AS BIGINT), 'block', CAST({block} AS BIGINT), 'bits', CAST({bits} "
        "AS BIGINT), "
        "'top', top, 'filled', filled, 'is_text', is_text))"
    )


def accepted(rows: DataFrame, folder: str, census: Census) -> DataFrame:
    """One row of `judged` for each operation or check: the best row that is not rejected."""
    valid = rows.where("reason IS NULL") if set(census.rows) - {None} else rows
    if not census.copies:
        return valid
    name, block, place = IDENTITY[folder]
    marked = valid.selectExpr(
        "*", f"{name} AS _name", f"{block} AS _block", f"CAST({place} AS INT) AS _place"
    )
    copied = (
        marked.groupBy("_name", "_block")
        .agg(F.expr("count(*) AS n"), F.expr("bit_or(shiftleft(1L, _place)) AS bits"))
        .where("n > bit_count(bits)")
        .select("_name", "_block")
    )
    alone = marked.join(F.broadcast(copied), ["_name", "_block"], "left_anti")
    best = "better_operation" if folder == "operations" else "better_check"
    row = (
        "run_id, operation_id"
        if folder == "operations"
        else "run_id, purgatory, key, instant, part"
    )
    compared = (
        marked.join(F.broadcast(copied), ["_name", "_block"], "left_semi")
        .withColumn(
            "_number",
            F.expr(f"row_number() OVER (PARTITION BY {row} ORDER BY {RULES[best]})"),
        )
        .where("_number = 1")
        .drop("_number")
    )
    return alone.unionByName(compared).drop("_name", "_block", "_place")
