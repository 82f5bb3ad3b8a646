"""The command line of the benchmark: ``python -m purgatory.bench PROGRAM``."""

import argparse
import sys
from collections.abc import Sequence

from purgatory.bench import burst, everything, http, load, memory, micro, relay
from purgatory.bench._program import Program

PROGRAMS: tuple[Program, ...] = (
    micro.PROGRAM,
    load.PROGRAM,
    burst.PROGRAM,
    memory.PROGRAM,
    http.PROGRAM,
    relay.PROGRAM,
    everything.PROGRAM,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that the arguments name, and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m purgatory.bench",
        description="Measures the purgatory. The exit status says whether it was measured, not how it fared.",
    )
    programs = parser.add_subparsers(title="programs", metavar="PROGRAM", required=True)
    for program in PROGRAMS:
        subparser = programs.add_parser(program.name, help=program.summary, description=program.summary)
        program.add_arguments(subparser)
        subparser.set_defaults(run=program.run)
    options = parser.parse_args(arguments)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
