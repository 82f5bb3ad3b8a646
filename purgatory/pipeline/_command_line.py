"""The command line of the pipeline: ``python -m purgatory.pipeline PROGRAM``.

Only the module of the program that is asked for is loaded, since each needs other libraries.
"""

import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from purgatory._core.errors import how_to_install
from purgatory.pipeline import _interrupts
from purgatory.pipeline._programs import (
    NoJournal,
    Program,
    SparkUnavailable,
    run_program,
    shown,
    without_secrets,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A program: its purpose, the module with its `add_arguments` and `run`, and the extra
    that this module needs."""

    summary: str
    module: str
    extra: str


PROGRAMS: Final = {
    "compact": Entry(
        "Makes few large files of a journal's many small ones, and deletes old ones.",
        "compact",
        "journal",
    ),
    "report": Entry(
        "Reads journals and finds problems with timeouts, keys and triggers.",
        "report._command",
        "report",
    ),
    "stream": Entry(
        "Decides on streams of operations and signals, exactly once.", "streaming._command", "spark"
    ),
    "synth": Entry(
        "Makes a journal of any size, with known facts for a report to find.", "synth", "report"
    ),
}
USER_ERRORS: Final = (NoJournal, SparkUnavailable, OSError)
"""Errors whose message is enough for a user; a traceback would not help. This also holds
for errors of the `ENGINES`."""
ENGINES: Final = ("duckdb", "_duckdb", "pyspark", "py4j")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program that the arguments name, and returns its exit status: 1 if it failed, 130
    after Ctrl-C.

    In both cases it prints one line with the reason.
    """
    given = sys.argv[1:] if arguments is None else [*arguments]
    description = "Reads the journals of purgatories, and decides on streams of operations."
    try:
        return run_program("python -m purgatory.pipeline", description, _programs(given), given)
    except (Exception, KeyboardInterrupt) as error:
        if _interrupts.is_interruption(error):
            print(_interrupts.LINE, file=sys.stderr)
            return _interrupts.STATUS
        if not _is_for_users(error):
            raise
        if "--verbose" in given:
            print(without_secrets(traceback.format_exc()), file=sys.stderr)
        else:
            print(shown(exception_line(str(error))), file=sys.stderr)
        return 1


def _programs(given: list[str]) -> list[Program]:
    """All programs, for the help; only the requested one with its arguments."""
    asked = next((name for name in given if not name.startswith("-")), None)
    return [
        _loaded(name, entry)
        if name == asked
        else Program(name, entry.summary, lambda _: None, lambda _: 2)
        for name, entry in PROGRAMS.items()
    ]


def _loaded(name: str, entry: Entry) -> Program:
    try:
        with _interrupts.during_imports():
            module = import_module(f"purgatory.pipeline.{entry.module}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "purgatory":
            raise
        raise OSError(
            f"cannot run {name!r}: {missing} is not installed; {how_to_install(entry.extra)}"
        ) from error
    return Program(name, entry.summary, module.add_arguments, module.run)


def _is_for_users(error: BaseException) -> bool:
    is_of_engine = any(each.__module__.partition(".")[0] in ENGINES for each in type(error).__mro__)
    return isinstance(error, USER_ERRORS) or is_of_engine


def exception_line(text: str) -> str:
    """The last line of a worker's traceback: the exception and its message."""
    lines = [line.strip() for line in text.splitlines()]
    ends = [
        number
        for number, line in enumerate(lines)
        if line.startswith("File ") and number + 2 < len(lines)
    ]
    words = (
        [line for line in lines[ends[-1] + 2 :] if line and not set(line) <= set("^~ ")]
        if ends
        else lines
    )
    return next(
        (line for line in words if ":" in line), words[0] if words else "no reason was given"
    )
