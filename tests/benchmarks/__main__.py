"""The command line of the benchmarks: ``python tests/benchmarks PROGRAM``."""

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import load, long_polls, memory, micro, relay

PROGRAMS = {"micro": micro, "http": long_polls, "load": load, "memory": memory, "relay": relay}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python tests/benchmarks",
        description="Measures the purgatory. The exit status says whether it was measured, not how"
        " it fared.",
    )
    programs = parser.add_subparsers(title="programs", metavar="PROGRAM", required=True)
    for name, program in PROGRAMS.items():
        added = programs.add_parser(
            name, help=program.SUMMARY, description=program.SUMMARY + " --quick proves nothing."
        )
        added.add_argument("--quick", action="store_true", help="do a small part of everything")
        added.add_argument("--json", type=Path, metavar="FILE", help="write the figures, too")
        added.add_argument(
            "--seed", type=int, default=1, metavar="N", help="of everything random (default: 1)"
        )
        program.add_arguments(added)
        added.set_defaults(run=program.run)
    options = parser.parse_args()
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
