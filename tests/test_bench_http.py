"""``python -m purgatory.bench http``: that it runs, and tells what it should. How fast anything is, is not tested here."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asgi_requests import Request
from conftest import turns

from purgatory.bench import http
from purgatory.bench.__main__ import main
from purgatory.bench._http_service import Service


def test_a_quick_run_measures_every_row_prints_it_and_writes_it_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "http.json"

    assert main(["http", "--quick", "--polls", "1000", "--json", str(file)]) == 0

    printed = capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["program"] == "http"
    assert report["quick"] is True
    assert "prove nothing" in printed
    rows = {row["work"]: row for row in report["rows"]}
    assert len(rows) == 8
    for figure in ("p50", "p99", "p99.9", "CPU per answer"):
        row = rows[f"1,000 open polls: {figure}"]
        assert row["ours"] > 0
        assert row["theirs"] > 0
        assert row["verdict"] in (("met", "missed") if figure in ("p99", "CPU per answer") else ("no target",))
    ours, theirs = report["rows"][0]["turns"]
    assert (ours["path"], theirs["path"]) == ("ours", "theirs")
    assert min(ours["answered"], theirs["answered"]) > 0
    assert "SIGTERM with 10 polls open: 10 answered, to exit" in rows
    assert "100 clients vanish: until 0 are pending" in rows


def turn(number: int, path: str, p99: float, cpu: float) -> dict[str, Any]:
    latencies = {"p50": p99 / 2, "p99": p99, "p99.9": p99 * 2}
    return {"round": number, "path": path, "cpu": cpu, "clients_busy": 0.5, **latencies}


@pytest.mark.parametrize(("count", "verdict"), [(1_000, "met"), (15_000, "missed"), (5_000, "no target")])
def test_ratios_are_of_paired_turns_and_judged_by_their_median(count: int, verdict: str) -> None:
    turns = [
        *(turn(number, "ours", p99, 8e-6) for number, p99 in enumerate((0.002, 0.009, 0.004))),
        *(turn(number, "theirs", p99, 1e-5) for number, p99 in enumerate((0.004, 0.010, 0.001))),
    ]

    _, p99, _, cpu = http.compared(count, turns)

    assert (p99["ours"], p99["theirs"], p99["ratio"]) == pytest.approx((4.0, 4.0, 0.9))
    assert (cpu["ours"], cpu["theirs"]) == pytest.approx((8.0, 10.0))
    assert p99["verdict"] == cpu["verdict"] == verdict


def test_a_limit_of_open_files_that_is_too_low_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http, "raise_file_limit", lambda: 1024)

    assert main(["http"]) == 2

    assert "cannot open 15000 connections: the limit of open files is 1024" in capsys.readouterr().out.replace("\n", " ")


def test_clients_that_fail_are_not_taken_for_a_figure(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="the clients ended with status 1"):
        http.measured(
            {"work": "load", "polls": 10, "loop": "asyncio", "seed": 1, "look_every": 1.0}
        )  # an order that lacks the rest
    assert "KeyError" in capfd.readouterr().err


def test_every_handler_answers_the_same_question_alike(run) -> None:
    async def main_() -> None:
        service = Service(look_every=1.0)
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
        await turns(20)
        publish = Request(service.app, b"key=1", method="POST", path="/publish")
        await publish.done()
        assert {(await request.done()).content for request in waiting} == {waiting[0].content}
        assert json.loads(waiting[0].content)["version"] == 2

    run(main_)


def test_their_handler_notices_its_deadline_and_its_client(virtual) -> None:
    async def main_() -> None:
        service = Service(look_every=1.0)
        patient, leaver = (Request(service.app, b"key=1&seen=0&wait=5", path="/theirs") for _ in range(2))
        for request in (patient, leaver):
            request.body()
        await asyncio.sleep(2.5)
        leaver.leave()
        assert (await leaver.done()).status == 499
        assert service.theirs_open == 1
        assert (await patient.done()).status == 204
        assert service.theirs_open == 0

    virtual(main_)


def test_without_uvicorn_it_says_how_to_get_it() -> None:
    program = "import sys; sys.modules['uvicorn'] = None; import purgatory.bench.http"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.returncode != 0
    assert "pip install 'asyncio-purgatory[asgi,bench]'" in answer.stderr
