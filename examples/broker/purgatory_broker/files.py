"""What the system says about files: how many may be open, and who uses a directory."""

from math import inf
from pathlib import Path
from typing import IO

try:
    import fcntl
    import resource
except ImportError:  # on Windows, where there is no such limit, and two brokers on one directory are not noticed
    fcntl = resource = None  # type: ignore[assignment]


def max_open_files() -> float:
    """How many files this process may have open at a time."""
    return inf if resource is None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_max_open_files() -> None:
    """Lets this process open as many files as the system allows it to."""
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def lock(path: Path) -> IO[bytes]:
    """Opens a file and locks it until it is closed, or the process ends.

    Raises:
        OSError: it is locked.
    """
    file = path.open("ab")
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise OSError(f"another broker uses the directory {path.parent}") from None
    return file
