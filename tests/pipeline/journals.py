"""Journals for tests: rows, files of them, reports of them, and the comparison with
`oracle`."""

import os
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.journal import FOLDERS
from purgatory.pipeline.report._duckdb import DuckDB
from purgatory.pipeline.report._queries import TABLES, Summary
from purgatory.pipeline.report._tables import make_tables

START = datetime(2026, 3, 1, 11, 59, 50, tzinfo=UTC)
TEXT = pa.dictionary(pa.int32(), pa.string())


Row = dict[str, Any]


def operation(number: int, **columns: Any) -> Row:
    return {
        "run_id": "run",
        "purgatory": "letters",
        "kind": "Poll",
        "operation_id": number,
        "keys": ["key"],
        "started_at": START,
        "ended_at": START + timedelta(seconds=1),
        "timeout_s": 1.0,
        "outcome": "completed",
        "failed_tries": 2,
        "ended_by": "key",
        "missed_trigger": False,
    } | columns


def check(second: int, **columns: Any) -> Row:
    return {
        "run_id": "run",
        "purgatory": "letters",
        "key": "key",
        "second": START + timedelta(seconds=second),
        "checks": 1,
        "tried": 3,
        "completed": 1,
        "part": 0,
    } | columns


def write(
    journal: Path, folder: str, name: str, rows: list[Row], at: float | None = None, **columns: Any
) -> Path:
    """A file of a journal, perhaps last written `at` a time; with other `columns` in the place of
    some, or the same ones of another type."""
    file = journal / folder / f"{name}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    nullable = pa.schema([field.with_nullable(True) for field in FOLDERS[folder]])
    made = pa.Table.from_pylist(rows, nullable)
    for column, new in columns.items():
        if isinstance(new, pa.DataType):
            new = made[column].cast(new)
        made = made.set_column(made.column_names.index(column), column, new)
    pq.write_table(made, file, write_page_checksum=True, row_group_size=100)
    if at is not None:
        os.utime(file, (at, at))
    return file


def report(journal: Path, out: Path) -> Summary:
    """Makes the tables of a journal, on DuckDB."""
    with DuckDB.opened() as engine:
        return make_tables(engine, [str(journal)], str(out))


def random_operations(rng: random.Random, count: int, gaps: float = 0.002) -> list[Row]:
    """With ties, since all times are multiples of 100 ms in two of three runs. `gaps` is the share
    of operations without a start, and of those without an end."""
    rows = []
    for number in range(count):
        run = rng.choice(["coarse", "coarser", "fine"])
        grain = {"coarse": 100_000, "coarser": 1_000_000, "fine": 1}[run]
        start = rng.randrange(90_000_000) // grain * grain
        timeout = rng.choice([200_000, 1_000_000, 30_000_000])
        wait = min(int(rng.lognormvariate(12.5, 1.5)) // grain * grain, timeout)
        outcome = (
            "expired" if wait == timeout else rng.choices(["completed", "cancelled"], [20, 1])[0]
        )
        ends = rng.random() > gaps
        begins = not ends or rng.random() > gaps
        rows.append(
            operation(
                number,
                run_id=run,
                purgatory=rng.choice(["letters", "parcels"]),
                kind=rng.choice(["Poll", "Join", "Fetch"]),
                keys=[f"key-{rng.randrange(20)}" for _ in range(rng.randrange(1, 4))],
                started_at=START + timedelta(microseconds=start) if begins else None,
                ended_at=START + timedelta(microseconds=start + wait) if ends else None,
                outcome=outcome if ends else None,
                timeout_s=timeout / 1e6,
                missed_trigger=rng.random() < 0.01,
            )
        )
    return rows


def random_files(rng: random.Random) -> tuple[list[Row], list[list[Row]]]:
    """Valid operations, in few seconds, and two files in which each of them is, some of them several
    times, between rows that cannot be right."""
    rows = random_operations(rng, rng.randint(1, 40), gaps=0.2)
    for row in rng.sample(rows, len(rows) // 4):
        row["timeout_s"] = None
    copies = rng.choices(rows, k=rng.randrange(10))
    wrong = [operation(1_000_000 + each, outcome="vanished") for each in range(rng.randrange(4))]
    every = [*rows, *copies, *wrong]
    rng.shuffle(every)
    cut = rng.randint(0, len(every))
    return rows, [every[:cut], every[cut:]]


def random_checks(rng: random.Random) -> list[Row]:
    return [
        check(
            second,
            purgatory=purgatory,
            key=f"key-{key}",
            checks=3,
            tried=(tried := rng.randrange(9)),
            completed=rng.randint(0, tried),
            part=part,
        )
        for second in range(30)
        for part in range(2)
        for purgatory in ("letters", "parcels")
        for key in range(18, 23)
    ]


def dirty_journal(journal: Path) -> tuple[list[Row], list[Row]]:
    """A journal with each fault that a file or a row may have. Returns the operations and checks
    that count."""
    rng = random.Random(9)
    rows, checks = random_operations(rng, 2000, gaps=0.1), random_checks(rng)
    for row in rows[::4]:
        row["timeout_s"] = None
    long = {"keys": pa.large_list(pa.large_string()), "run_id": TEXT, "failed_tries": pa.int32()}
    parts = [
        write(journal, "operations", f"part {place}#a%20b", rows[place * 500 :][:500], **columns)
        for place, columns in enumerate(({}, long, {}, {}))
    ]
    made = pq.read_table(parts[0])
    more = made.append_column("more", made["kind"])
    pq.write_table(more.select(sorted(more.column_names)), parts[0])
    int96 = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    pq.write_table(pq.read_table(parts[2]), parts[2], **int96)
    damage(parts[3], "zeroed")
    write(journal, "operations", "compacted-x", rows[:1000])
    coarse = [row for row in rows[:20] if row["run_id"] != "fine"]
    write(journal, "operations", "copied", coarse, ended_at=pa.timestamp("ms", "Asia/Tokyo"))
    write(journal, "operations", "day=2026-11-25/hour=7/part 0#a", rows[7:14])
    ended = next(row for row in rows if row["ended_at"] and row["started_at"])
    write(journal, "operations", "earlier", [ended | {"ended_at": None, "outcome": None}])
    wrong: list[Row] = [
        {"outcome": "vanished"},
        {"ended_at": START - timedelta(seconds=1)},
        {"ended_at": None},
        {"outcome": None},
        {"timeout_s": float("nan")},
        {"timeout_s": -1.0},
        {"purgatory": None},
        {"started_at": None, "ended_at": None, "outcome": None},
        {"keys": ["a", None]},
        {"outcome": ""},
    ]
    made = [operation(10_000 + number, **columns) for number, columns in enumerate(wrong)]
    write(journal, "operations", "wrong *[1]", made)
    ends = pa.array([1 << 62, -1, 253_402_300_800_000_000, None]).cast(pa.timestamp("us", "UTC"))
    old = [operation(10_010 + number) for number in range(4)]
    write(journal, "operations", "ages", old, ended_at=ends)
    lost = write(journal, "operations", "narrow", [operation(10_020, outcome="lost")])
    pq.write_table(pq.read_table(lost).drop_columns("timeout_s"), lost)
    write(journal, "operations", "empty", [])
    write(journal, "operations", "zero", []).write_bytes(b"")
    cut = write(journal, "operations", "cut", rows[:100])
    cut.write_bytes(cut.read_bytes()[:-100])
    write(journal, "operations", "foreign", [operation(1)], run_id=[[1]])
    write(journal, "operations", "naive", [operation(1)], ended_at=pa.timestamp("us"))
    made = pq.read_table(write(journal, "operations", "twice", [operation(1)]))
    twice = made.append_column("run_id", made["run_id"])
    pq.write_table(twice, journal / "operations" / "twice.parquet")
    text = write(journal, "operations", "text", [operation(1, purgatory="XXXX")])
    text.write_bytes(text.read_bytes().replace(b"XXXX", b"\xff\xfe\xff\xfe"))
    (journal / "operations" / "day=2026-11-25" / "notes.txt").write_text("no file of a journal")
    write(journal, "operations", "_temporary/part-0", [operation(10_030)])
    write(journal, "checks", "x", checks)
    write(journal, "checks", "copied", checks[:7])
    write(journal, "checks", "wrong", [check(1, tried=0), check(2, checks=-1), check(3, key=None)])
    (journal / "runs").mkdir()
    (journal / "runs" / "fine").write_text(f"{5000:020}\n")  # it was killed
    return rows[:1500], checks


class Found(dict):
    """A row of a table; its columns are attributes, too."""

    __getattr__ = dict.__getitem__


def table(out: Path, name: str) -> list[Any]:
    return [Found(row) for row in pq.read_table(out / "tables" / name).to_pylist()]


def rejected(out: Path, folder: str) -> list[Any]:
    """The rejected rows, without an instant that no calendar has."""
    found = pq.read_table(out / "rejected" / folder)
    kept = [name for name in found.column_names if name != "ended_at"]
    return [Found(row) for row in found.select(kept).to_pylist()]


def tables(out: Path) -> dict[str, list[Any]]:
    return {name: table(out, name) for name in TABLES}


def account(rows: list[Any]) -> dict[tuple[str, str], int]:
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counts[row.folder, row.what] += row["count"]
    return counts


def assert_tables_equal(found: dict[str, list[Any]], rows: list[Row], checks: list[Row]) -> None:
    """To the last row and, where a number is a quotient, to the last bits."""
    rows = oracle.with_times(rows)
    outcomes = {
        (row.purgatory, row.kind, oracle.micros(row.minute) // 60_000_000): (
            row.started, row.completed, row.expired, row.cancelled, row.expiry_rate,
            row.wait_p50, row.wait_p90, row.wait_p99, row.wait_p999, row.wait_max,
        )
        for row in found["outcomes"]
    }  # fmt: skip
    assert_close(outcomes, oracle.outcomes(rows))
    names = ("operations", "checks", "tried", "completed", "false_wakeups", "missed_triggers")
    keys = {(row.purgatory, row.key): tuple(row[name] for name in names) for row in found["keys"]}
    assert keys == oracle.keys(rows, checks)
    pending = {
        (row.purgatory, oracle.micros(row.second) // 1_000_000 + later): (most, mean)
        for row in found["pending"]
        for most, mean in [(row.pending_max, row.pending_mean)]
        for later in range(row.seconds)
    }
    assert_close(pending, oracle.pending(rows))
    expected = oracle.curves(rows)
    assert_survival_equals(found["survival"], expected)
    assert_timeouts_equal(found["timeouts"], expected, rows)


def assert_close(found: dict, expected: dict, rel: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        for is_, should_be in zip(found[name], values, strict=True):
            near = None if should_be is None else pytest.approx(should_be, rel=rel, abs=1e-12)
            assert is_ == near, name


def three_digits_up(wait: int) -> int:
    step = 10 ** max(len(str(wait)) - 3, 0)
    return -(-wait // step) * step


def assert_survival_equals(found: list[Any], expected: dict) -> None:
    points = {
        (row.purgatory, row.kind, round(row.timeout_s * 1e6)): (
            row.at_risk, row.expiry_rate, row.standard_error
        )
        for row in found
    }  # fmt: skip
    last = {
        (*name, three_digits_up(wait)): (at_risk, float(rate), error)
        for name, curve in expected.items()
        for wait, at_risk, rate, error in curve
    }
    assert_close(points, last, rel=1e-9)


def assert_timeouts_equal(found: list[Any], expected: dict, rows: list[Row]) -> None:
    ended = Counter((row["purgatory"], row["kind"], row["outcome"]) for row in rows)
    missed = Counter((row["purgatory"], row["kind"]) for row in rows if row["missed_trigger"])

    def answers(name: tuple[str, str]) -> Iterator[Any]:
        # Operations that completed only at their deadline do not count.
        curve = expected.get(name, []) if ended[*name, "completed"] > missed[name] else []
        for rate in (0.01, 0.001):
            wait = next((wait / 1e6 for wait, _, left, _ in curve if left <= rate), None)
            yield wait
            yield "not answerable from this data" if wait is None else "answered"

    outcomes = ("completed", "expired", "cancelled", None)
    columns = ("completed", "expired", "cancelled", "without_end", "timeout_1_percent")
    columns += ("answer_1_percent", "timeout_01_percent", "answer_01_percent")
    assert {
        (row.purgatory, row.kind): tuple(row[column] for column in columns) for row in found
    } == {
        name: (*(ended[*name, outcome] for outcome in outcomes), *answers(name))
        for name in {each[:2] for each in ended}
    }


def damage(file: Path, how: str) -> None:
    """Overwrites a third of the file's middle; its beginning and its footer stay."""
    content = bytearray(file.read_bytes())
    first, last = len(content) // 3, 2 * len(content) // 3
    content[first:last] = (
        bytes(last - first) if how == "zeroed" else random.Random(3).randbytes(last - first)
    )
    file.write_bytes(content)
