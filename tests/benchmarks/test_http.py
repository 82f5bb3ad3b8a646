"""``python tests/benchmarks http`` runs, and prints its rows. Speed is not tested here."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from asgi_requests import Request
from helpers import iterations

from benchmarks.__main__ import main
from benchmarks.cases import Result
from benchmarks.http import command, rows
from benchmarks.http.rows import Load, compared
from benchmarks.http.service import Service
from benchmarks.measure import Unmeasurable

pytestmark = pytest.mark.slow


def test_quick_run_prints_every_row_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "http.json"

    assert main(["http", "--quick", "--polls", "1000", "--json", str(file)]) == 0

    printed = capsys.readouterr().out
    report = json.loads(file.read_text())
    assert (report["program"], report["quick"]) == ("http", True)
    assert "prove nothing" in printed
    names = [
        "1000-p50",
        "1000-p99",
        "1000-p99.9",
        "1000-cpu",
        "memory",
        "memory-share",
        "stop",
        "vanish",
    ]
    assert [row["name"] for row in report["rows"]] == names
    for row in report["rows"]:
        if row["name"] == "memory" and row["verdict"] == "not measured":
            assert "so few polls" in row["reason"]
            continue
        assert row["verdict"] in (("no target",) if row["target"] is None else ("met", "missed"))
        assert (row["bare"]["theirs"] is None) == (row["unit"] != "×")
        if row["name"].startswith("1000"):
            assert row["cost_unit"] == ("µs" if row["name"] == "1000-cpu" else "ms")
            assert row["bare"]["ours"]["median"] > 0 and row["bare"]["theirs"]["median"] > 0
        assert f"{row['name']} on {row['loop']}" in printed
    ours, theirs = report["runs"]
    assert (ours["path"], theirs["path"], ours["polls"]) == ("ours", "theirs", 1000)
    assert min(ours["answered"], theirs["answered"]) > 0


def run_of(number: int, path: str, p99: float, cpu: float) -> dict[str, Any]:
    latencies = {"p50": p99 / 2, "p99": p99, "p99.9": p99 * 2}
    return {"round": number, "path": path, "cpu": cpu, "clients_busy": 0.5, **latencies}


RUNS = [
    *(run_of(number, "ours", p99, 8e-6) for number, p99 in enumerate((0.002, 0.009, 0.004))),
    *(run_of(number, "theirs", p99, 1e-5) for number, p99 in enumerate((0.004, 0.010, 0.001))),
]


def test_ratio_is_the_median_of_paired_runs() -> None:
    p99, cpu = (compared(RUNS, figure).bare for figure in ("p99", "cpu"))

    assert p99.theirs is not None and cpu.theirs is not None
    assert (p99.ours.median, p99.theirs.median, p99.figure.median) == pytest.approx((4.0, 4.0, 0.9))
    assert (cpu.ours.median, cpu.theirs.median) == pytest.approx((8.0, 10.0))


@pytest.mark.parametrize(
    ("count", "verdict"), [(1_000, "met"), (15_000, "missed"), (5_000, "no target")]
)
def test_load_target_depends_on_its_polls(count: int, verdict: str) -> None:
    cases = command.load_cases(Load(count, rounds=3, seconds=1.0, check_interval=1.0))

    measured = compared(RUNS, "p99")

    verdicts = [Result(case, "uvloop", measured).verdict for case in cases]
    assert verdicts == ["no target", verdict, "no target", verdict]


def test_load_without_answers_has_no_figure() -> None:
    with pytest.raises(Unmeasurable, match="no poll was answered"):
        compared(RUNS[:3], "p99")


def test_low_file_limit_is_reported_before_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "raise_file_limit", lambda: 1024)

    assert main(["http"]) == 2

    assert (
        "cannot open 15000 connections: the limit of open files is 1024" in capsys.readouterr().err
    )


def test_failed_clients_yield_no_figure(capfd: pytest.CaptureFixture[str]) -> None:
    job = {
        "work": "load",
        "polls": 10,
        "loop": "asyncio",
        "seed": 1,
        "check_interval": 1.0,
    }  # which lacks the rest
    with pytest.raises(RuntimeError, match="the clients ended with status 1"):
        asyncio.run(rows.measured_once(job))
    assert "KeyError" in capfd.readouterr().err


def test_every_handler_answers_the_same_question_alike(run) -> None:
    async def main_() -> None:
        service = Service(check_interval=1.0)
        publish = Request(service.app, b"key=1", method="POST", path="/publish")
        assert (await publish.done()).status == 204
        answers = []
        for path in ("/ours", "/theirs", "/alone", "/bare"):
            request = Request(service.app, b"key=1&seen=0&wait=5", path=path)
            request.body()
            answers.append((await request.done()).content)
        assert len(set(answers)) == 1
        assert json.loads(answers[0])["version"] == 1

        waiting = []
        for path in ("/ours", "/theirs", "/alone", "/bare"):
            waiting.append(Request(service.app, b"key=1&seen=1&wait=5", path=path))
            waiting[-1].body()
        await iterations(20)
        publish = Request(service.app, b"key=1", method="POST", path="/publish")
        await publish.done()
        assert {(await request.done()).content for request in waiting} == {waiting[0].content}
        assert json.loads(waiting[0].content)["version"] == 2

    run(main_)


def test_their_handler_notices_its_deadline_and_its_client(virtual) -> None:
    async def main_() -> None:
        service = Service(check_interval=1.0)
        patient, leaver = (
            Request(service.app, b"key=1&seen=0&wait=5", path="/theirs") for _ in range(2)
        )
        for request in (patient, leaver):
            request.body()
        await asyncio.sleep(2.5)
        leaver.leave()
        assert (await leaver.done()).status == 499
        assert service.theirs_open == 1
        assert (await patient.done()).status == 204
        assert service.theirs_open == 0

    virtual(main_)
