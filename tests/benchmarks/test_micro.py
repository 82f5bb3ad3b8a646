"""``python tests/benchmarks micro`` runs, and prints its rows. Speed is not tested here."""

import asyncio
import itertools
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import purgatory
from benchmarks import measure, options
from benchmarks.__main__ import main
from benchmarks.cases import Case, LoopName, Result, Setting
from benchmarks.measure import Comparison, LoopProbe, Measured, Quantiles, Unmeasurable
from benchmarks.micro import command as micro
from benchmarks.micro import timer_rows

pytestmark = pytest.mark.slow

LOOPS = ["asyncio", "uvloop"]


@pytest.mark.parametrize("loop_name", LOOPS)
def test_quick_run_prints_every_row_and_writes_json(
    loop_name: LoopName, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "micro.json"

    assert main(["micro", "--quick", "--loop", loop_name, "--json", str(file)]) == 0

    printed = capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["program"] == "micro"
    assert report["quick"] is True
    assert "prove nothing" in printed
    assert [row["name"] for row in report["rows"]] == [case.name for case in micro.CASES]
    for row, case in zip(report["rows"], micro.CASES, strict=True):
        assert row["loop"] == loop_name
        if row["verdict"] == "not measured":
            # A machine may be too busy for a row, which is marked then; the others are still
            # there.
            assert "too busy" in row["reason"]
            continue
        assert (
            row["verdict"] in ("met", "missed")
            if loop_name in case.targets
            else row["verdict"] == "no target"
        )
        assert row["target"] == case.targets.get(loop_name)
        for spread in filter(None, row["bare"].values()):
            assert spread["low"] <= spread["median"] <= spread["high"]
            assert (
                spread["low"] > 0 or " add" in row["work"]
            )  # on a busy machine a difference may be less than nothing
        assert (row["settled"] is None) == (row["unit"] != "×")
        assert f"{case.name} on {loop_name}" in printed


def test_older_checkout_alternates_and_each_row_shows_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, older = tmp_path / "micro.json", tmp_path / "older"
    shutil.copytree(
        Path(purgatory.__file__).parent,
        older / "purgatory",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    slow = older / "purgatory" / "__init__.py"
    slow.write_text(slow.read_text("utf-8") + SLOWER, "utf-8")

    arguments = [
        "--quick",
        "--loop",
        "asyncio",
        "--only",
        "timer-1s-0",
        "--only",
        "memory",
        "--json",
        str(file),
    ]
    assert main(["micro", "--against", str(older), *arguments]) == 0

    ratio, bytes_ = json.loads(file.read_text())["rows"]
    assert (ratio["name"], ratio["reason"], bytes_["name"], bytes_["reason"]) == (
        "timer-1s-0",
        None,
        "memory",
        None,
    )
    assert (
        ratio["before"] > 3 * ratio["after"] > 0
        and ratio["before_figure"] > 3 * ratio["after_figure"] > 0
    )
    assert bytes_["before"] > 0 < bytes_["after"] and bytes_["before_figure"] is None
    printed = capsys.readouterr().out
    assert "timer-1s-0 on asyncio: " in printed and "of the earlier cost" in printed


SLOWER = """
def call_later(self, delay, callback, *args, call=WheelTimer.call_later):
    sum(range(10_000))
    return call(self, delay, callback, *args)

WheelTimer.call_later = call_later
"""


def test_row_unknown_to_older_checkout_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "purgatory").mkdir()
    (tmp_path / "purgatory" / "__init__.py").write_text("")

    assert (
        main(
            [
                "micro",
                "--quick",
                "--loop",
                "asyncio",
                "--only",
                "timer-1s-0",
                "--against",
                str(tmp_path),
            ]
        )
        == 0
    )

    printed = capsys.readouterr().out
    assert (
        "timer-1s-0 on asyncio: not measured before: ImportError: cannot import name 'WheelTimer'"
        in printed
    )


@pytest.mark.parametrize("name", ["uvloop", "both"])
def test_missing_uvloop_error_names_the_extra(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(options, "has_uvloop", lambda: False)

    with pytest.raises(SystemExit):
        main(["micro", "--loop", name])

    assert "pip install uvloop" in capsys.readouterr().err


def test_row_without_figure_is_explained_and_others_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuse(_: Setting) -> Measured:
        raise Unmeasurable("the moon is full")

    async def succeed(_: Setting) -> Measured:
        return Measured(Comparison.alone([1.0]))

    cases = [
        Case("bad", "", "", {}, "ms", refuse),
        Case("good", "", "", {"asyncio": 1.0}, "ms", succeed),
    ]
    monkeypatch.setattr(micro, "CASES", cases)
    file = tmp_path / "micro.json"

    assert main(["micro", "--loop", "asyncio", "--json", str(file)]) == 0

    bad, good = json.loads(file.read_text())["rows"]
    assert (bad["verdict"], bad["reason"], bad["bare"]) == (
        "not measured",
        "the moon is full",
        None,
    )
    assert (good["verdict"], good["bare"]["figure"]["median"]) == ("met", 1.0)
    assert "the moon is full" in capsys.readouterr().out


def test_row_is_judged_by_its_bare_median() -> None:
    async def unused(_: Setting) -> Measured:
        raise NotImplementedError

    case = Case("row", "", "", {"uvloop": 2.0}, "×", unused)
    comparison = Comparison.paired(ours=[2, 4, 9], theirs=[1, 2, 3])

    assert comparison.figure == Quantiles(median=2.0, low=2.0, high=2.5)
    assert (
        Result(case, "uvloop", Measured(comparison, settled=Comparison.alone([9.0]))).verdict
        == "met"
    )
    assert Result(case, "uvloop", Measured(Comparison.alone([2.1]))).verdict == "missed"
    assert Result(case, "asyncio", Measured(comparison)).verdict == "no target"


def test_contenders_alternate_and_loop_settles_after_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "WARM_UP_ROUNDS", 1)
    happened: list[str] = []

    def contender(name: str) -> measure.Contender:
        async def batch() -> None:
            happened.append(name)
            asyncio.get_running_loop().call_soon(happened.append, f"clean up after {name}")

        while True:
            yield batch

    measured = asyncio.run(measure.compare(contender("ours"), contender("theirs"), range(2)))

    assert happened == ["ours", "clean up after ours", "theirs", "clean up after theirs"] * 3
    assert measured.settled is not None
    assert measured.settled.ours.median >= measured.bare.ours.median


def test_each_contender_runs_byte_code_of_its_own() -> None:
    def function(number: int) -> int:
        return number + 1

    copy = measure.own_copy(function)

    assert copy(1) == 2
    assert copy.__code__ is not function.__code__


def test_equal_seeds_replace_equal_timers_on_both_sides() -> None:
    class Handle:
        def cancel(self) -> None:
            happened.append(self)

    async def replaced_delays() -> list[float]:
        delays: list[float] = []

        def call_later(delay: float, _: Callable[[], None]) -> Handle:
            delays.append(delay)
            return Handle()

        contender = timer_rows.replacing(
            call_later, [Handle() for _ in range(10)], (20.0, 50.0), random.Random(7)
        )
        await next(contender)()
        return delays

    happened: list[Handle] = []
    assert asyncio.run(replaced_delays()) == asyncio.run(replaced_delays())
    assert len(happened) == 2 * measure.BATCH


def test_the_probe_sees_how_long_the_loop_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(
        itertools.accumulate([0.0, 1.0, 5.0, 2.0, 1.0])
    )  # one reading per iteration, one in __enter__ and __exit__
    monkeypatch.setattr(time, "process_time", lambda: next(clock))

    async def stall() -> float:
        with LoopProbe() as probe:
            for _ in range(3):
                await asyncio.sleep(0)
        return probe.max_stall

    assert asyncio.run(stall()) == 5.0


def test_probe_counts_gap_still_open_at_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 7.0])
    monkeypatch.setattr(time, "process_time", lambda: next(clock))

    async def stall() -> float:
        with LoopProbe() as probe:
            pass
        await asyncio.sleep(0)  # in which it does not run any more
        return probe.max_stall

    assert asyncio.run(stall()) == 7.0
