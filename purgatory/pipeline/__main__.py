"""The command line of the pipeline: ``python -m purgatory.pipeline PROGRAM``."""

import argparse
import sys
from collections.abc import Sequence

from purgatory.pipeline import report, simulate, stream, synth
from purgatory.pipeline._program import Program
from purgatory.pipeline._session import SparkUnavailable

PROGRAMS: tuple[Program, ...] = (report.PROGRAM, simulate.PROGRAM, stream.PROGRAM, synth.PROGRAM)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that the arguments name, and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m purgatory.pipeline", description="Reads the journals of purgatories on Spark, and answers questions."
    )
    programs = parser.add_subparsers(title="programs", metavar="PROGRAM", required=True)
    for program in PROGRAMS:
        subparser = programs.add_parser(program.name, help=program.summary, description=program.summary)
        program.add_arguments(subparser)
        subparser.set_defaults(run=program.run)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except SparkUnavailable as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
