"""The command line of the benchmark: ``python -m purgatory.bench PROGRAM``."""

import sys
from collections.abc import Sequence

from purgatory._programs import Program, run_program
from purgatory.bench import cascade, everything, relay
from purgatory.bench.http import _command as http
from purgatory.bench.micro import _command as micro
from purgatory.bench.rivals import burst, load, memory

PROGRAMS: tuple[Program, ...] = (
    micro.PROGRAM,
    http.PROGRAM,
    relay.PROGRAM,
    load.PROGRAM,
    burst.PROGRAM,
    cascade.PROGRAM,
    memory.PROGRAM,
    everything.PROGRAM,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program that the arguments name, and returns its exit status."""
    description = "Measures the purgatory. The exit status says whether it was measured, not how it fared."
    return run_program("python -m purgatory.bench", description, PROGRAMS, arguments)


if __name__ == "__main__":
    sys.exit(main())
