"""Limits and locks of the system: open files, and the directory of a broker."""

from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

try:
    import fcntl
    import resource
except (
    ImportError
):  # on Windows, where there is no such limit, and two brokers on one directory are not noticed
    fcntl = resource = None  # type: ignore[assignment]


def max_open_files() -> float:
    """The number of files that this process may have open."""
    return inf if resource is None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_max_open_files() -> None:
    """Raises the limit of open files of this process as far as the system allows."""
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_directory(path: Path) -> None:
    """Makes a directory, unless it exists.

    Raises:
        OSError: files cannot be created in it.
    """
    path.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=path):
        pass


def lock(path: Path) -> IO[bytes]:
    """Opens a file and locks it until it is closed, or the process ends.

    Raises:
        OSError: another process has locked the file.
    """
    file = path.open("ab")
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise OSError(f"another broker uses the directory {path.parent}") from None
    return file
