"""What survives a restart besides the records: tables of topics, groups and offsets, in memory and in one append-only file.

Each line of the file is a change in JSON, `[table, key, value]`; the value null stands for what is gone, and `{"bytes": text}`
for bytes. At the start it is read, up to the first line that is not whole, and written anew without what is out of date.
"""

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from .log import Store
from .settings import Settings

Key = tuple[str | int, ...]
Change = tuple[str, Key, Any]


def _line(change: Change) -> str:
    return json.dumps(change, default=lambda data: {"bytes": data.decode("latin-1")}) + "\n"


def _value(found: dict[str, Any]) -> Any:
    return found["bytes"].encode("latin-1") if "bytes" in found else found


class Kept:
    """Tables, which are dictionaries to read; they are changed by `change` alone.

    Args:
        settings: its directory is where `kept.jsonl` is.
    """

    def __init__(self, settings: Settings) -> None:
        self.tables: defaultdict[str, dict[Key, Any]] = defaultdict(dict)
        self._store = None
        if settings.directory is not None:
            path = settings.directory / "kept.jsonl"
            self._read(path)
            self._store = Store(path, settings.fsync)

    def change(self, *changes: Change) -> None:
        """Keeps some values, which are JSON and bytes, or forgets those that are None.

        Raises:
            OSError: they cannot be written; nothing has changed.
        """
        if self._store is not None and changes:
            self._store.append("".join(map(_line, changes)).encode())
        for table, key, value in changes:
            self._apply(table, key, value)

    def close(self) -> None:
        """Closes the file."""
        if self._store is not None:
            self._store.file.close()

    def _apply(self, table: str, key: Key, value: Any) -> None:
        self.tables[table][key] = value
        if value is None:
            del self.tables[table][key]

    def _read(self, path: Path) -> None:
        """Reads the file, and puts a new one in its place: who looks for it finds the one or the other."""
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                table, key, value = json.loads(line, object_hook=_value)
            except ValueError:
                break  # the process ended while it wrote this
            self._apply(table, tuple(key), value)
        new = path.with_suffix(".new")
        with new.open("w") as file:
            file.writelines(_line((name, key, value)) for name, table in self.tables.items() for key, value in table.items())
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
