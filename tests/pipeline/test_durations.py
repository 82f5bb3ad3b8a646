"""Waits by the time in which they began: counted by steps, and spans are joined where there are too
many."""

import random
from collections import Counter, defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import oracle
import pytest
from journals import START, Row, operation, random_operations, report, write

from purgatory.pipeline.report import _data
from purgatory.pipeline.report._data import LATENESS, WAITS, data


def shown(tmp_path: Path, rows: list[Row]) -> dict[str, Any]:
    write(tmp_path / "journal", "operations", "x", rows)
    return data([], report(tmp_path / "journal", tmp_path / "out"))


def cells(found: dict[str, Any], name: str) -> Counter[tuple[Any, ...]]:
    """By group, run, span (the first of joined ones), step and counter."""
    counts: Counter[tuple[Any, ...]] = Counter()
    what = {"waits": WAITS, "lateness": LATENESS}[name]
    columns = found[name]
    for group, run, place, flat in zip(
        *(columns[each] for each in ("group", "run", "place", "cells")), strict=True
    ):
        for step, *numbers in zip(*[iter(flat)] * (len(what) + 1), strict=True):
            for each, number in zip(what, numbers, strict=True):
                counts[
                    *map(str, found["groups"][group]), found["runs"][run], place, step, each
                ] += number
    return +counts


def micros(time: timedelta) -> int:
    return time // timedelta(microseconds=1)


def simple(rows: list[Row], found: dict[str, Any], name: str) -> Counter[tuple[Any, ...]]:
    counts: Counter[tuple[Any, ...]] = Counter()
    last: dict[str, Any] = defaultdict(lambda: START)
    for row in rows:
        last[row["run_id"]] = max(
            filter(None, (last[row["run_id"]], row["started_at"], row["ended_at"]))
        )
    for row in rows:
        if row["started_at"] is None:
            continue
        wait = micros((row["ended_at"] or last[row["run_id"]]) - row["started_at"])
        what = {"completed": "completed", None: "open"}.get(row["outcome"], "others")
        if name == "lateness":
            if row["outcome"] != "expired":
                continue
            wait, what = max(wait - round(row["timeout_s"] * 1e6), 0), "expired"
        window = found["window"]
        place = int((row["started_at"].timestamp() * 1000 - window["start"]) / window["width"])
        place = place // found[name]["width"] if place < window["count"] else -1
        step = oracle.step_of(wait)
        counts[row["purgatory"], row["kind"], row["run_id"], place, step, what] += 1
    return counts


@pytest.mark.parametrize(("most", "width"), [(1_000_000, 1), (2_000, 16)])
def test_operation_is_counted_by_wait_and_start(
    most: int, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_data, "MOST_CELLS", {WAITS: most, LATENESS: most})
    rows = random_operations(random.Random(21), 4000)

    found = shown(tmp_path, rows)

    assert found["waits"]["width"] == width
    assert sum(map(len, found["waits"]["cells"])) <= 4 * most
    for name in ("waits", "lateness"):
        assert cells(found, name) == simple(rows, found, name)


def test_operations_outside_window_count_only_in_total(tmp_path: Path) -> None:
    rows = [operation(number, run_id=f"run-{number % 2}") for number in range(300)]
    early = START - timedelta(days=300)
    stray = operation(300, run_id="run-0", started_at=early, ended_at=early + timedelta(seconds=1))

    found = shown(tmp_path, [*rows, stray])

    assert sum(number for cell, number in cells(found, "waits").items() if cell[3] == -1) == 1
    assert cells(found, "waits").total() == 301
