"""The command line of the benchmarks: ``python tests/benchmarks PROGRAM``."""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

if (
    __name__ == "__main__"
):  # modules are found from the folder above; here `http` would hide Python's own
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import cascade, relay
from benchmarks.baselines import burst, load, memory
from benchmarks.http import command as http
from benchmarks.micro import command as micro
from benchmarks.options import add_common_options
from purgatory.pipeline._programs import Program, run_program

PROGRAMS_OF_ALL = (
    micro.PROGRAM,
    http.PROGRAM,
    load.PROGRAM,
    burst.PROGRAM,
    cascade.PROGRAM,
    memory.PROGRAM,
)
"""What ``all`` runs."""


def add_arguments_of_all(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, fastest_loop=True)


def run_all(options: argparse.Namespace) -> int:
    """Runs the programs with their defaults, and writes their figures into one file, by the name of
    the program."""
    reports = {}
    status = 0
    with tempfile.TemporaryDirectory() as directory:
        for program in PROGRAMS_OF_ALL:
            parser = argparse.ArgumentParser()
            program.add_arguments(parser)
            own = parser.parse_args([])
            for name in ("loops", "seed", "quick"):
                setattr(own, name, getattr(options, name))
            own.json = Path(directory) / f"{program.name}.json"
            status = max(status, program.run(own))
            reports[program.name] = json.loads(own.json.read_text("utf-8"))
    if options.json:
        options.json.write_text(json.dumps(reports, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return status


ALL = Program(
    "all",
    "All of these but relay, one after the other: it takes hours.",
    add_arguments_of_all,
    run_all,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program that the arguments name, and returns its exit status."""
    description = (
        "Measures the purgatory. The exit status says whether it was measured, not how it fared."
    )
    return run_program(
        "python tests/benchmarks", description, (*PROGRAMS_OF_ALL, relay.PROGRAM, ALL), arguments
    )


if __name__ == "__main__":
    sys.exit(main())
