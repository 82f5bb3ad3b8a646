"""What the programs of the benchmark have in common: how they are listed, and the options that several of them take."""

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from purgatory.bench._cases import LoopName
from purgatory.bench.designs import DESIGNS, Listed


@dataclass(frozen=True, slots=True)
class Program:
    """A subcommand: `run` gets what `add_arguments` made the parser read, and returns the exit status."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_common_options(parser: argparse.ArgumentParser, random: bool = True) -> None:
    """Add ``--loop``, ``--seed`` if anything is random, ``--quick`` and ``--json``."""
    parser.add_argument(
        "--loop",
        dest="loops",
        type=loops,
        default=("asyncio", "uvloop") if has_uvloop() else ("asyncio",),
        metavar="{asyncio,uvloop,both}",
        help="the event loop to run on (default: both, where uvloop is installed)",
    )
    if random:
        parser.add_argument("--seed", type=int, default=1, metavar="N", help="of everything random (default: %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="do a hundredth: shows that the benchmark runs, and proves nothing"
    )
    parser.add_argument("--json", type=writable_file, metavar="FILE", help="write the figures to FILE, too")


def choose_loop(parser: argparse.ArgumentParser) -> None:
    """Make one loop the default of ``--loop``, the fastest there is: what takes long is not done twice unless asked for."""
    default = ("uvloop",) if has_uvloop() else ("asyncio",)
    parser.set_defaults(loops=default)
    for action in parser._actions:
        if action.dest == "loops":
            action.help = f"the event loop to run on (default: {default[0]})"


def add_designs_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--design``."""
    parser.add_argument(
        "--design",
        dest="designs",
        action=_Designs,
        default=DESIGNS,
        choices=[design.name for design in DESIGNS],
        help="only this design; may be repeated. " + "; ".join(f"{design.name}: {design.summary}" for design in DESIGNS),
    )


class _Designs(argparse.Action):
    """Collects designs by their names, in place of the default."""

    def __call__(self, _parser: object, namespace: argparse.Namespace, name: object, _option: object = None) -> None:
        chosen: list[Listed] = [] if namespace.designs is DESIGNS else namespace.designs
        namespace.designs = [*chosen, *(design for design in DESIGNS if design.name == name and design not in chosen)]


def add_plot_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--plot``."""
    parser.add_argument("--plot", type=writable_directory, metavar="DIR", help="draw the figures as PNG files in DIR, too")


def writable_directory(name: str) -> Path:
    """A directory to draw into, made if need be, refused before the work is done and not after it."""
    path = Path(name)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot draw into {name!r}: {error.strerror}") from None
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("drawing needs matplotlib, which is not installed: pip install matplotlib")
    return path


def positive(text: str) -> int:
    """A number of things, at least one."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return number


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
