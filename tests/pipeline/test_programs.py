"""Command lines with several programs: one is chosen by its name, gets its options, and gives the
exit status."""

import argparse
from typing import Any

import pytest

from purgatory.pipeline._programs import Program, run_program


@pytest.fixture
def calls() -> list[tuple[str, dict[str, Any]]]:
    """Which programs were run, with which options."""
    return []


@pytest.fixture
def programs(calls: list[tuple[str, dict[str, Any]]]) -> list[Program]:
    def program(name: str, status: int) -> Program:
        def run(options: argparse.Namespace) -> int:
            calls.append(
                (
                    name,
                    {option: value for option, value in vars(options).items() if option != "run"},
                )
            )
            return status

        def add_arguments(parser: argparse.ArgumentParser) -> None:
            parser.add_argument(f"--{name}s", type=int, default=3)

        return Program(name, f"Counts {name}s.", add_arguments, run)

    return [program("sheep", 0), program("goat", 7)]


@pytest.mark.parametrize(
    ("arguments", "status", "call"),
    [
        (["sheep"], 0, ("sheep", {"sheeps": 3})),
        (["goat", "--goats", "5"], 7, ("goat", {"goats": 5})),
    ],
)
def test_named_program_gets_its_options_and_returns_status(
    programs, calls, arguments, status, call
):
    assert run_program("python -m farm", "A farm.", programs, arguments) == status
    assert calls == [call]


def test_without_arguments_those_of_the_process_count(programs, calls, monkeypatch):
    monkeypatch.setattr("sys.argv", ["farm", "goat"])
    assert run_program("python -m farm", "A farm.", programs) == 7
    assert calls == [("goat", {"goats": 3})]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: PROGRAM"),
        (["cow"], "invalid choice: 'cow'"),
        (["sheep", "--goats", "5"], "unrecognized arguments: --goats 5"),
        (["sheep", "--sheeps", "many"], "invalid int value: 'many'"),
    ],
)
def test_wrong_arguments_run_nothing_and_are_reported(programs, calls, capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        run_program("python -m farm", "A farm.", programs, arguments)
    shown = capsys.readouterr().err
    assert (
        ended.value.code == 2
        and message in shown
        and "usage: python -m farm" in shown
        and calls == []
    )


def test_the_help_says_what_each_program_does(programs, capsys):
    with pytest.raises(SystemExit) as ended:
        run_program("python -m farm", "A farm.", programs, ["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert "A farm." in shown and "Counts sheeps." in shown and "Counts goats." in shown
