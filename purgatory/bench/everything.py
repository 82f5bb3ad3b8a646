"""``python -m purgatory.bench all``: all programs but ``relay``, one after the other, each with its defaults."""

import argparse
import json
import tempfile
from pathlib import Path

from purgatory._programs import Program
from purgatory.bench import cascade
from purgatory.bench._options import add_common_options, add_plot_option, choose_loop
from purgatory.bench.http import _command as http
from purgatory.bench.micro import _command as micro
from purgatory.bench.rivals import burst, load, memory

PROGRAMS = (micro.PROGRAM, http.PROGRAM, load.PROGRAM, burst.PROGRAM, cascade.PROGRAM, memory.PROGRAM)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser)
    choose_loop(parser)
    add_plot_option(parser)


def run(options: argparse.Namespace) -> int:
    """Runs the programs, and writes their figures into one file, by the name of the program."""
    reports = {}
    status = 0
    with tempfile.TemporaryDirectory() as directory:
        for program in PROGRAMS:
            parser = argparse.ArgumentParser()
            program.add_arguments(parser)
            own = parser.parse_args([])
            for name in ("loops", "seed", "quick", "plot"):
                setattr(own, name, getattr(options, name))
            own.json = Path(directory) / f"{program.name}.json"
            status = max(status, program.run(own))
            reports[program.name] = json.loads(own.json.read_text("utf-8"))
    if options.json:
        options.json.write_text(json.dumps(reports, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return status


PROGRAM = Program("all", "All of these but relay, one after the other: it takes hours.", add_arguments, run)
