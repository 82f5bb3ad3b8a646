"""Command lines with several programs, as in ``python -m purgatory.pipeline PROGRAM``."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """One program of a command line.

    Attributes:
        name: the word that starts it.
        summary: one sentence for the help.
        add_arguments: adds its options to a parser.
        run: does the work with the options that were read, and returns the exit status.
    """

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def run_program(
    command: str,
    description: str,
    programs: Iterable[Program],
    arguments: Sequence[str] | None = None,
) -> int:
    """Runs the program that the arguments name, and returns its exit status.

    Args:
        command: how the command line is started, for the help.
        arguments: by default `sys.argv[1:]`.

    Raises:
        SystemExit: the arguments are wrong, or ask for help.
    """
    parser = argparse.ArgumentParser(prog=command, description=description)
    subparsers = parser.add_subparsers(title="programs", metavar="PROGRAM", required=True)
    for program in programs:
        subparser = subparsers.add_parser(
            program.name, help=program.summary, description=program.summary
        )
        program.add_arguments(subparser)
        subparser.set_defaults(run=program.run)
    options = parser.parse_args(arguments)
    return int(options.run(options))
