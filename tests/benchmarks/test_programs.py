"""The programs of ``python tests/benchmarks`` but ``micro`` and ``http`` run, and print their
figures.

Also the options that these, and ``http``, refuse. Speed is not tested here.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from requirements import need

from benchmarks import __main__ as command_line
from benchmarks import relay, replies
from benchmarks.__main__ import main
from benchmarks.baselines import burst, load
from benchmarks.measure import Unmeasurable
from purgatory.pipeline._programs import Program

pytestmark = pytest.mark.slow


def report_of(tmp_path: Path, *arguments: str) -> Any:
    file = tmp_path / "report.json"
    assert main([*arguments, "--quick", "--json", str(file)]) == 0
    return json.loads(file.read_text())


def test_load_measures_implementations_at_all_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = ["--rate", "20000", "--rate", "max"]
    implementations = ["--implementation", "call-later", "--implementation", "ours"]
    chosen = ["--timeouts", "low", *rates, *implementations]
    report = report_of(
        tmp_path, "load", "--requests", "100000", "--rounds", "2", "--markdown", *chosen
    )

    runs = report["runs"]
    assert [(each["latency"], each["rate"], each["implementation"]) for each in runs] == [
        ("low", rate, name) for rate in (20_000.0, None) for name in ("call-later", "ours")
    ]
    for each in runs:
        assert each["requests"] == 1000
        assert 0 < each["actual_rate"] < 1e7
        assert each["net_us"] == pytest.approx(each["cpu_us"] - each["own_us"])
        assert 0.03 < each["expired"] <= 1  # 8 %, and more on a busy machine
        assert len(each["lateness_ms"]) == len(report["percentiles"]) and each[
            "lateness_ms"
        ] == sorted(each["lateness_ms"])
        assert all(low <= each[name] <= high for name, (low, high) in each["spread"].items())
        assert each["max_stall_ms"] >= 0 and each["per_second"]["wake_ups"] > 0
    printed = capsys.readouterr().out
    assert "prove nothing" in printed and "call-later" in printed and "20,000" in printed
    assert "| *ours* | " in printed


def test_load_runs_kafkas_classes_on_equal_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need("javac", "needs Java 17 with its compiler: apt-get install openjdk-17-jdk-headless")
    need("mvn", "needs Maven: apt-get install maven")
    chosen = ["--timeouts", "high", "--rate", "20000", "--implementation", "ours"]
    report = report_of(tmp_path, "load", "--java", "--requests", "500000", *chosen)

    ours, java = report["runs"]
    assert (ours["implementation"], java["implementation"]) == ("ours", "java")
    assert java["own_us"] > 0 and java["cpu_us"] > 0
    assert java["expired"] == pytest.approx(
        ours["expired"], abs=0.1
    )  # a busy machine expires some that others complete
    assert len(java["lateness_ms"]) == len(report["percentiles"]) and java["lateness_ms"] == sorted(
        java["lateness_ms"]
    )
    assert java["max_stall_ms"] is None and java["per_second"] == {}
    assert "java" in capsys.readouterr().out


def test_load_reports_missing_java_before_measuring(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delattr(load, "round_of")

    assert main(["load", "--java", "--quick"]) == 1
    assert (
        "--java needs Java 17 with its compiler: apt-get install openjdk-17-jdk-headless"
        in capsys.readouterr().out
    )


def test_the_figures_of_several_rounds_are_their_medians() -> None:
    rounds = [
        load.Figures(
            "uvloop",
            "low",
            10.0,
            "ours",
            5,
            rate,
            rate,
            1.0,
            rate - 1,
            0.5,
            [rate, 2 * rate],
            1.0,
            {"wake_ups": rate},
            {},
        )
        for rate in (3.0, 9.0, 4.0)
    ]

    medians = load.medians_of(rounds)

    assert (medians.rate, medians.requests, medians.implementation) == (10.0, 5, "ours")
    assert (medians.actual_rate, medians.cpu_us, medians.net_us) == (4.0, 4.0, 3.0)
    assert (medians.lateness_ms, medians.per_second) == ([4.0, 8.0], {"wake_ups": 4.0})
    assert medians.spread == {"actual_rate": (3.0, 9.0), "cpu_us": (3.0, 9.0), "net_us": (2.0, 8.0)}


def test_page_table_shows_medians_and_their_spread() -> None:
    def figures(name: str, rate: float | None, net: float, low: float) -> load.Figures:
        spread = {"net_us": (low, 9.0), "actual_rate": (4000.0, 4000.0)}
        return load.Figures(
            "uvloop", "low", rate, name, 5, 4000.0, 8.0, 1.0, net, 0.5, [], 1.0, {}, spread
        )

    runs = [figures("ours", 10_000.0, 7.0, 6.04), figures("kafka", 10_000.0, 8.0, 7.0)]
    runs += [figures("ours", None, 5.0, 5.0), figures("kafka", None, 5.0, 5.0)]

    assert load.markdown(runs) == [
        "| | net µs at 10,000/s | as fast as it goes: requests a second |",
        "|---|---|---|",
        "| *ours* | 7.0 (6.0 to 9.0) | 4,000 |",
        "| *kafka* | 8.0 (7.0 to 9.0) | 4,000 |",
    ]


def test_burst_measures_both_kinds_and_every_request_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of(tmp_path, "burst", "--implementation", "ours")

    printed = capsys.readouterr().out
    measured = [(each["kind"], each["implementation"], each["requests"]) for each in report["runs"]]
    for kind, size in product(("expiry", "check"), (100, 10_000)):
        # A machine may be too busy for a row, which is marked then; the others are still there.
        assert (
            kind,
            "ours",
            size,
        ) in measured or f"{kind} of {size:,} in ours: the machine was too busy" in printed
    assert len(measured) == len(set(measured)) >= 2
    for each in report["runs"]:
        assert (
            0 < each["median_ms"] <= each["max_stall_ms"] and each["median_ms"] <= each["total_ms"]
        )
    assert "How long others wait in a burst" in printed


def test_cascade_measures_cases_and_fires_due_timers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of(tmp_path, "cascade")

    runs = report["runs"]
    assert [(each["wheel_size"], each["order"]) for each in runs] == [
        (512, "changed meanwhile"),
        (128, "random"),
    ]
    for each in runs:
        assert (
            each["timers"] == 10_000 and 0 < each["fired"] < 1000
        )  # in half a second some 20, in a busy one a few more
        assert (
            0 <= each["late_p99_ms"] <= each["late_max_ms"]
            and 0 <= each["short_p99_ms"] <= each["short_max_ms"]
        )
        assert 0 < each["own_stall_ms"] <= each["max_stall_ms"]
    assert "How late timers are in a cascade" in capsys.readouterr().out


def test_memory_measures_what_pending_requests_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of(tmp_path, "memory", "--implementation", "ours")

    assert [each["requests"] for each in report["runs"]] == [100, 10_000]
    assert report["runs"][-1]["bytes_each"] > 200
    assert 0.0 <= report["runs"][-1]["held"] < 0.02
    assert "Memory of a pending request" in capsys.readouterr().out


def test_all_runs_every_program_and_gathers_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(name: str, status: int) -> Program:
        def run(options: Any) -> int:
            options.json.write_text(
                json.dumps({"seed": options.seed, "loops": options.loops, "quick": options.quick})
            )
            return status

        return Program(name, "", command_line.add_arguments_of_all, run)

    monkeypatch.setattr(command_line, "PROGRAMS_OF_ALL", (program("one", 0), program("two", 3)))
    file = tmp_path / "all.json"

    assert main(["all", "--seed", "7", "--loop", "asyncio", "--json", str(file)]) == 3
    assert json.loads(file.read_text()) == {
        name: {"seed": 7, "loops": ["asyncio"], "quick": False} for name in ("one", "two")
    }


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["micro", "--against", "/nowhere"],
            "'/nowhere' is no checkout: it has no purgatory/__init__.py",
        ),
        (["micro", "--only", "nonsense"], "no row is named 'nonsense'; rows: timer-0, "),
        (["micro", "--loop", "trio"], "expected asyncio, uvloop or both, got 'trio'"),
        (["micro", "--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["micro", "--json", "/nowhere/at/all.json"], "there is no directory '/nowhere/at'"),
        (["micro", "--json", "/"], "'/' is a directory"),
        ([], "required: PROGRAM"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["load", "--rate", "fast"], "'fast' is neither 'max' nor a number of requests per second"),
        (["load", "--rate", "nan"], "'nan' is neither"),
        (["load", "--rate", "0"], "'0' is neither"),
        (["load", "--requests", "0"], "expected a positive whole number, got '0'"),
        (["load", "--implementation", "nonsense"], "invalid choice: 'nonsense'"),
        (["load", "--timeouts", "none"], "invalid choice: 'none'"),
        (["memory", "--loop", "trio"], "expected asyncio, uvloop or both, got 'trio'"),
        (
            ["http", "--polls", "many"],
            "argument --polls: expected a positive whole number, got 'many'",
        ),
        (["http", "--polls", "0"], "argument --polls: expected a positive whole number, got '0'"),
        (["http", "--rounds", "0"], "argument --rounds: expected a positive whole number, got '0'"),
        (
            ["http", "--seconds", "-1"],
            "argument --seconds: expected a positive number of seconds, got '-1'",
        ),
        (
            ["http", "--check-interval", "0"],
            "argument --check-interval: expected a positive number of seconds, got '0'",
        ),
        (["http", "--loop", "trio"], "expected asyncio, uvloop or both, got 'trio'"),
        (["http", "--json", "/nowhere/at/all.json"], "there is no directory '/nowhere/at'"),
    ],
)
def test_wrong_option_is_refused_before_measuring(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)

    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.out == ""


def test_help_explains_each_program_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])

    printed = capsys.readouterr().out
    for name in ("micro", "http", "load", "burst", "cascade", "memory", "all"):
        assert f"\n    {name} " in printed


def test_failed_burst_is_reported_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: Any) -> Any:
        if arguments[2:] == ("expiry", "ours", 100):
            raise Unmeasurable("the moon is full")
        return burst.Figures("asyncio", arguments[2], arguments[3], arguments[4], 1.0, 2.0, 3.0)

    monkeypatch.setattr(burst, "in_fresh_process", refuse)
    report = report_of(tmp_path, "burst", "--implementation", "ours")

    assert len(report["runs"]) == 3
    assert "expiry of 100 in ours: the moon is full" in capsys.readouterr().out


@pytest.mark.parametrize("program", ["burst", "memory"])
def test_programs_without_randomness_take_no_seed(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([program, "--seed", "1"])

    assert "unrecognized arguments: --seed 1" in capsys.readouterr().err


def test_relay_compares_folder_and_redis_with_handwritten_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("redis-server", "needs redis-server: apt-get install redis-server")
    monkeypatch.setattr(
        relay, "LOST_AFTER", 60.0
    )  # so that it counts lost answers, and not answers that a busy machine delayed
    report = report_of(tmp_path, "relay", "--seconds", "3", "--rate", "200")

    rows = [(row["store"], row["way"], row["is_killed"]) for row in report["rows"]]
    redis = [("redis", way, is_killed) for way in ("ours", "theirs") for is_killed in (False, True)]
    assert rows == [("file", "ours", False), *redis]
    for row in report["rows"]:
        assert row["writes"] > 0
        if row["way"] == "theirs" and row["is_killed"]:
            continue  # it may lose all answers, as this row demonstrates
        assert row["answers"] > 0
        assert row["lost"] == 0 or row["way"] == "theirs"
    assert report["watched"] == 10_000
    assert "prove nothing" in capsys.readouterr().out


def test_relay_measures_what_many_keys_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need("redis-server", "needs redis-server: apt-get install redis-server")
    report = report_of(tmp_path, "relay", "--sizes")

    assert [(row["store"], row["keys"]) for row in report["rows"]] == [
        (store, keys) for store in ("file", "redis") for keys in (100, 1_000)
    ]
    for row in report["rows"]:
        assert min(row[name] for name in ("write_ms", "wait_ms", "answer_ms", "stored")) > 0
    assert "prove nothing" in capsys.readouterr().out


def test_relay_measures_replies_and_what_expires(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("redis-server", "needs redis-server: apt-get install redis-server")
    monkeypatch.setattr(replies, "SETTLED", 400)
    monkeypatch.setattr(replies, "TTL", 1.0)
    monkeypatch.setattr(replies, "STABLE_FOR", 2)
    monkeypatch.setattr(replies, "MAX_GIVING_BACK", 5)
    report = report_of(tmp_path, "relay", "--replies", "--expired", "500", "--seconds", "2")

    assert [row["store"] for row in report["rows"]] == ["file", "redis"]
    for row in report["rows"]:
        assert min(row[name] for name in ("bare", "alone", "batched", "p50")) > 0
        assert row["swept"] < replies.SWEPT_WITHIN
    assert [row["way"] for row in report["ways"]] == ["relay", "blpop", "pubsub"]
    waits = replies.WAITS // 10
    assert [row["connections"] > waits / 2 for row in report["ways"]][:2] == [False, True]
    assert "prove nothing" in capsys.readouterr().out


def test_relay_compares_shared_channel_with_channel_per_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("redis-server", "needs redis-server: apt-get install redis-server")
    monkeypatch.setattr(relay, "LOST_AFTER", 60.0)
    report = report_of(tmp_path, "relay", "--channels")

    assert [row["way"] for row in report["rows"]] == ["ours", "channels"]
    for row in report["rows"]:
        assert row["answers"] == row["writes"] > 0
        assert row["lost"] == 0
        assert row["cpu_of_server"] > 0
    assert "prove nothing" in capsys.readouterr().out


def test_relay_measures_write_cost_in_processes_without_waiters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("redis-server", "needs redis-server: apt-get install redis-server")
    monkeypatch.setattr(relay, "PROCESSES", (2,))
    monkeypatch.setattr(relay, "WRITERS", 2)
    report = report_of(tmp_path, "relay", "--interest", "--rate", "200")

    rows = [(row["store"], row["processes"], row["is_waiting"]) for row in report["rows"]]
    assert rows == [(store, 2, waits) for store in ("file", "redis") for waits in (True, False)]
    # Writes and messages are counted at two moments, so one may be a few ahead of the other.
    assert all(
        row["writes"] > 0 and (row["batch"] > 0.9 or not row["is_waiting"])
        for row in report["rows"]
    )
    assert [row["store"] for row in report["joins"]] == ["file", "redis"]
    assert all(row["times"] > 1 for row in report["joins"])
    assert "prove nothing" in capsys.readouterr().out
