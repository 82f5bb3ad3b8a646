"""Processes of their own, and the memory and open files of a process."""

import multiprocessing
import os
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from benchmarks.measure import Unmeasurable

P = ParamSpec("P")
T = TypeVar("T")

TESTS = Path(__file__).resolve().parents[1]
"""The folder from which `benchmarks` is imported."""


def run_module(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment of a process that runs a module of `benchmarks`."""
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return [sys.executable, "-m", module, *arguments], {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
    }


def in_fresh_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `function` returns in a process of its own: it meets no memory and no adapted byte code
    of other measurements.

    The function, its arguments and its result are pickled.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *args, **kwargs).result()


def resident_bytes() -> int:
    """The memory of this process that is in RAM now.

    Unlike tracemalloc, it includes the allocator's rounding, and uvloop's memory outside of
    Python.

    Raises:
        Unmeasurable: the system has no ``/proc``.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError:
        raise Unmeasurable(
            "resident memory is read from /proc, which this system does not have"
        ) from None
    return pages * os.sysconf("SC_PAGE_SIZE")


def raise_file_limit() -> int:
    """Lets this process open as many files as the system allows; returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
