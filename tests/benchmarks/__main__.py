"""The command line of the benchmarks: ``python tests/benchmarks PROGRAM``."""

import argparse
import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

PROGRAMS = {
    "micro": "one operation, against the event loop's own means for the same work",
    "http": "long polls on a real server, against the usual handler without this library",
    "load": "a million requests: this purgatory, Kafka's design, and timers of the loop",
    "relay": "waits that complete in another process, against the same by hand",
    "threads": "a loop in each of several threads, against one thread",
}
MODULES = {"http": "long_polls"}
"""Modules with another name than the program."""


def main() -> int:
    about = "The exit status says whether it was measured, not how it fared."
    parser = argparse.ArgumentParser(prog="python tests/benchmarks", description=about)
    programs = parser.add_subparsers(title="programs", metavar="PROGRAM", required=True)
    for name, summary in PROGRAMS.items():
        added = programs.add_parser(name, help=summary, description=summary)
        if name not in sys.argv[1:2]:
            continue  # imports what it alone needs
        program = import_module(f"benchmarks.{MODULES.get(name, name)}")
        quick = "do a small part of everything, which proves nothing"
        added.add_argument("--quick", action="store_true", help=quick)
        added.add_argument("--json", type=Path, metavar="FILE", help="write the figures, too")
        seed = "of everything random (default: 1)"
        added.add_argument("--seed", type=int, default=1, metavar="N", help=seed)
        program.add_arguments(added)
        added.set_defaults(run=program.run)
    options = parser.parse_args()
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
