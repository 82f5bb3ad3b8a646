"""The command line of the benchmarks: ``python tests/benchmarks PROGRAM``."""

import sys
from pathlib import Path

if __name__ == "__main__":  # from the folder above; here `http` would hide Python's own
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import relay
from benchmarks.baselines import load, memory
from benchmarks.http import command as http
from benchmarks.micro import command as micro
from purgatory.pipeline._programs import run_program

PROGRAMS = (micro.PROGRAM, http.PROGRAM, load.PROGRAM, memory.PROGRAM, relay.PROGRAM)

if __name__ == "__main__":
    description = (
        "Measures the purgatory. The exit status says whether it was measured, not how it fared."
    )
    sys.exit(run_program("python tests/benchmarks", description, PROGRAMS, None))
