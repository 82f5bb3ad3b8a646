"""Folders and files by full names, on this machine and elsewhere.

Names are literal: nothing in them is a pattern. A name with ``://`` is a URI, which only Spark can
read: see `_remote`.
"""

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote

SCHEME: Final = re.compile(r"[\w+.-]+:(//[^/]*)?")
"""The scheme and the host of a URI."""
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name of a folder for null."""
FROM_JAVA: Final = "An error occurred while calling"
CAUSED_BY: Final = "Caused by: "
JAVA_CLASS: Final = re.compile(rf"^(?:: |{CAUSED_BY})(?:(?:\w+\.)+[\w$]+: )?")


class Vanished(Exception):
    """A file that was listed is gone: it was compacted or deleted meanwhile."""


class Storage(Protocol):
    """Folders and files, by full names."""

    def sizes(self, folder: str) -> dict[str, int] | None:
        """The sizes of all files below a folder by their names in it, such as
        ``day=2026-11-25/part-0.parquet``, without hidden ones; `None` if it is not there."""
        ...

    def read(self, file: str, limit: int) -> bytes:
        """The first `limit` bytes of a file."""
        ...

    def write(self, file: str, content: bytes) -> None: ...
    def make(self, folder: str) -> None: ...

    def move(self, folder: str, to: str) -> None:
        """Renames a folder; `to` does not exist."""
        ...

    def delete(self, folder: str) -> None:
        """Deletes a folder with all that is in it, if it is there."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of all that is in a folder, hidden or not; none if it is not there."""
        ...


class Local:
    """The file system of this machine, as a `Storage`."""

    def sizes(self, folder: str) -> dict[str, int] | None:
        if not Path(folder).is_dir():
            return None
        sizes = {}
        with os.scandir(folder) as entries:
            for each in entries:
                if is_hidden(each.name):
                    continue
                with suppress(FileNotFoundError):  # it was compacted just now
                    if each.is_file():
                        sizes[each.name] = each.stat().st_size
                    elif each.is_dir():
                        sizes |= within(each.name, self.sizes(each.path))
        return sizes

    def read(self, file: str, limit: int) -> bytes:
        with Path(file).open("rb") as opened:
            return opened.read(limit)

    def write(self, file: str, content: bytes) -> None:
        """Writes a new file, and then gives it the name."""
        partial = Path(f"{file}.partial")
        partial.unlink(missing_ok=True)
        partial.write_bytes(content)
        partial.replace(file)

    def make(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)

    def move(self, folder: str, to: str) -> None:
        Path(folder).rename(to)

    def delete(self, folder: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def names(self, folder: str) -> list[str]:
        return [each.name for each in Path(folder).iterdir()] if Path(folder).is_dir() else []


def is_uri(name: str) -> bool:
    """Whether only Spark knows where a name leads."""
    return "://" in name


def distinct(names: Iterable[str]) -> list[str]:
    """Journals, each once, as any process understands them."""
    absolute = os.path.abspath  # a link stays as it is named
    return [*dict.fromkeys(name.rstrip("/") if is_uri(name) else absolute(name) for name in names)]


def is_hidden(name: str) -> bool:
    """Whether Spark and we leave a file or a folder out, by its name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def within(folder: str, sizes: dict[str, int] | None) -> dict[str, int]:
    """The sizes by names, each with the folder's name in front."""
    return {f"{folder}/{name}": size for name, size in (sizes or {}).items()}


def relative(path: str, folder: str) -> str:
    """The name of a file in a folder, wherever a path or a URI names another host for it."""
    depth = len(_parts(folder))
    return "/".join(_parts(path)[depth:])


def _parts(path: str) -> list[str]:
    scheme = SCHEME.match(path)
    return [part for part in path[scheme.end() if scheme else 0 :].split("/") if part]


def in_folders(name: str) -> dict[str, str | None]:
    """The columns in the names of a file's folders, where Spark and Hive put them:
    ``purgatory=jobs/part-0.parquet``.

    Args:
        name: name of the file, in its journal's folder.
    """
    parts = (part.partition("=") for part in name.split("/")[:-1] if "=" in part)
    return {column: None if value == NULL else unquote(value) for column, _, value in parts}


def first_line(error: BaseException) -> str:
    """The message of an exception, in one line. If it is from Java, Java's reason: py4j's own
    message has none."""
    lines = [text for line in str(error).splitlines() if (text := line.strip().rstrip("."))]
    if lines and lines[0].startswith(FROM_JAVA):
        reasons = [line for line in lines if line.startswith((": ", CAUSED_BY))]
        first, *causes = [JAVA_CLASS.sub("", each) for each in reasons] or lines
        is_said = not causes or causes[-1] in first
        return first if is_said else f"{first}: {causes[-1]}"
    return lines[0] if lines else type(error).__name__
