"""The command line of the pipeline: ``python -m purgatory.pipeline PROGRAM``.

Only the module of the program that is asked for is loaded, since each needs other libraries.
"""

import argparse
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple

from purgatory._core.arguments import allow_any_text
from purgatory._core.errors import how_to_install
from purgatory.pipeline._files import first_line
from purgatory.pipeline._programs import NoJournal, SparkUnavailable, shown, without_secrets


class Program(NamedTuple):
    """A program: its purpose, the module with its `add_arguments` and `run`, and the extra
    that this module needs."""

    summary: str
    module: str
    extra: str


PROGRAMS: Final = {
    "compact": Program(
        "Makes few large files of a journal's many small ones.", "compact", "journal"
    ),
    "report": Program(
        "Finds wrong timeouts, hot keys and missed triggers in journals.",
        "report._command",
        "report",
    ),
    "stream": Program(
        "Decides on streams of operations and signals, exactly once.", "streaming._command", "spark"
    ),
    "synth": Program(
        "Makes a journal of any size, with known facts for a report to find.", "synth", "report"
    ),
}
USER_ERRORS: Final = (NoJournal, SparkUnavailable, OSError)
"""Errors that a user understands by their message; a traceback would not help. This also holds
for errors of the `ENGINES`."""
ENGINES: Final = ("duckdb", "_duckdb", "pyspark", "py4j")
INTERRUPTED: Final = 130
"""The exit status after Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program that the arguments name, and returns its exit status: 1 if it failed, 130
    after Ctrl-C.

    In both cases it prints one line with the reason.
    """
    given = sys.argv[1:] if arguments is None else [*arguments]
    allow_any_text(sys.stdout)
    try:
        options = _parser(given).parse_args(given)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return int(options.run(options))
    except (Exception, KeyboardInterrupt) as error:
        if _is_interruption(error):
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        if not _is_for_users(error):
            raise
        if "--verbose" in given:
            print(without_secrets(traceback.format_exc()), file=sys.stderr)
        else:
            print(shown(first_line(error)), file=sys.stderr)
        return 1


def _parser(given: list[str]) -> argparse.ArgumentParser:
    """With all programs, for the help; only the requested one has its arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m purgatory.pipeline",
        description="Reads the journals of purgatories, and decides on streams of operations.",
    )
    programs = parser.add_subparsers(title="programs", metavar="PROGRAM", required=True)
    asked = next((name for name in given if not name.startswith("-")), None)
    for name, program in PROGRAMS.items():
        subparser = programs.add_parser(name, help=program.summary, description=program.summary)
        if name == asked:
            _add_arguments(subparser, name, program)
    return parser


def _add_arguments(parser: argparse.ArgumentParser, name: str, program: Program) -> None:
    try:
        module = import_module(f"purgatory.pipeline.{program.module}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "purgatory":
            raise
        raise OSError(
            f"cannot run {name!r}: {missing} is not installed; {how_to_install(program.extra)}"
        ) from error
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)


def _is_interruption(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error, perhaps indirectly: it also reaches Java, which then
    cannot be stopped properly."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _is_for_users(error: BaseException) -> bool:
    is_of_engine = any(each.__module__.partition(".")[0] in ENGINES for each in type(error).__mro__)
    return isinstance(error, USER_ERRORS) or is_of_engine
