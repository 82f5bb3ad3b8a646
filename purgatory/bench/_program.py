"""What the programs of the benchmark have in common: how they are listed, and the options that several of them take."""

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from purgatory.bench._cases import LoopName


@dataclass(frozen=True, slots=True)
class Program:
    """A subcommand: `run` gets what `add_arguments` made the parser read, and returns the exit status."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--loop``, ``--seed``, ``--quick`` and ``--json``."""
    parser.add_argument(
        "--loop",
        dest="loops",
        type=loops,
        default=("asyncio", "uvloop") if has_uvloop() else ("asyncio",),
        metavar="{asyncio,uvloop,both}",
        help="the event loop to run on (default: both, where uvloop is installed)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of everything random (default: %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="do a hundredth: shows that the benchmark runs, and proves nothing"
    )
    parser.add_argument("--json", type=writable_file, metavar="FILE", help="write the figures to FILE, too")


def loops(name: str) -> tuple[LoopName, ...]:
    """The loops that ``--loop name`` stands for."""
    if name == "asyncio":
        return ("asyncio",)
    if name not in ("uvloop", "both"):
        raise argparse.ArgumentTypeError(f"{name!r} is not one of asyncio, uvloop, both")
    if not has_uvloop():
        raise argparse.ArgumentTypeError(f"{name!r} needs uvloop, which is not installed: pip install uvloop")
    return ("uvloop",) if name == "uvloop" else ("asyncio", "uvloop")


def has_uvloop() -> bool:
    return importlib.util.find_spec("uvloop") is not None


def writable_file(name: str) -> Path:
    """A path to write to, refused before the work is done and not after it."""
    path = Path(name)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{name!r} is a directory")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write {name!r}: there is no directory {str(path.parent)!r}")
    return path
