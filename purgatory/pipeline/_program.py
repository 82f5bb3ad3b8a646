"""What the programs of the pipeline have in common: how they are listed, and the option that says where Spark is."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """A subcommand: `run` gets what `add_arguments` made the parser read, and returns the exit status."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_master_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--master``."""
    parser.add_argument(
        "--master",
        metavar="URL",
        help="where Spark is: local[N], spark://…, or sc://… for Spark Connect "
        "(default: what SPARK_REMOTE says, otherwise all cores of this machine)",
    )
