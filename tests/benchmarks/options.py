"""The options that several programs take. Invalid values are refused before the work, not after
it."""

import argparse
import importlib.util
from pathlib import Path

from benchmarks.cases import LoopName


def add_common_options(
    parser: argparse.ArgumentParser,
    random: bool = True,
    any_loop: bool = True,
    fastest_loop: bool = False,
) -> None:
    """Adds ``--quick`` and ``--json``, ``--seed`` if anything is random, and ``--loop`` if it runs
    on any.

    Args:
        fastest_loop: the default is not to run on all loops, for programs that take too long for
            that.
    """
    if any_loop:
        available: tuple[LoopName, ...] = ("asyncio", "uvloop") if has_uvloop() else ("asyncio",)
        default = available[-1:] if fastest_loop else available
        parser.add_argument(
            "--loop",
            dest="loops",
            type=loops,
            default=default,
            metavar="{asyncio,uvloop,both}",
            help=f"the event loop to run on (default: {' and '.join(default)})",
        )
    if random:
        parser.add_argument(
            "--seed",
            type=int,
            default=1,
            metavar="N",
            help="of everything random (default: %(default)s)",
        )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="do a small part: shows that it runs, and proves nothing",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE, too")


def checkout(text: str) -> Path:
    """A directory that holds the package."""
    path = Path(text).resolve()
    if not (path / "purgatory" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(
            f"{text!r} is no checkout: it has no purgatory/__init__.py"
        )
    return path


def positive(text: str) -> int:
    """A whole number, at least one."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return number


def loops(name: str) -> tuple[LoopName, ...]:
    """The loops that a value of ``--loop`` names."""
    named: dict[str, tuple[LoopName, ...]] = {
        "asyncio": ("asyncio",),
        "uvloop": ("uvloop",),
        "both": ("asyncio", "uvloop"),
    }
    if name not in named or (name != "asyncio" and not has_uvloop()):
        raise argparse.ArgumentTypeError(
            f"expected asyncio, or with uvloop installed uvloop or both, got {name!r}"
        )
    return named[name]


def has_uvloop() -> bool:
    """Whether uvloop is installed; it does not exist for Windows."""
    return importlib.util.find_spec("uvloop") is not None
