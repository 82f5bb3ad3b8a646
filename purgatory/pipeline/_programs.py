"""What the programs share: command lines such as ``python -m purgatory.pipeline PROGRAM``, options,
errors, and text for terminals and pages.

Names from journals may carry escape sequences, and URIs secrets.
"""

import argparse
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from purgatory._core.arguments import printable

PASSWORD: Final = re.compile(r"(://[^\s'\"/@:]*):[^\s'\"]*@")
"""From the colon after the user to the last @ of an address."""
SECRET: Final = re.compile(r"(?i)(token|password|secret|signature|sig)=[^\s'\";&]*")


class NoJournal(Exception):
    """There is no journal where one should be."""


class SparkUnavailable(Exception):
    """Spark cannot be started here; the message has the reason and a remedy."""


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


def add_master_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--master``, the address of Spark, and ``--verbose``."""
    parser.add_argument(
        "--verbose", action="store_true", help="show Spark's output, and the duration of each step"
    )
    parser.add_argument(
        "--master",
        metavar="URL",
        help="where Spark is: local[N], spark://…, or sc://… for Spark Connect "
        "(default: from spark-submit, SPARK_REMOTE or Spark's configuration; otherwise all "
        "cores of this machine)",
    )


def has_session() -> bool:
    """Whether this process belongs to a session of Spark: it was started by ``spark-submit``, or
    ``SPARK_REMOTE`` names a Spark Connect."""
    return any(os.environ.get(name) for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"))


def without_secrets(text: object) -> str:
    """Replaces passwords and tokens in URIs by ``***``."""
    return SECRET.sub(r"\1=***", PASSWORD.sub(r"\1:***@", str(text)))


def shown(text: object) -> str:
    """The text on one line, printable and without secrets."""
    return printable(without_secrets(text))
