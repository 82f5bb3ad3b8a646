"""The tables that survive a restart: topics, groups and offsets, in memory and in one append-only
file.

Each line of the file is a change in JSON, `[table, key, value]`. The value null deletes the key,
and `{"bytes": text}` represents bytes. At the start the file is read up to the first incomplete
line, and rewritten without the changes that later ones undid.
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


def _encode(change: Change) -> str:
    return json.dumps(change, default=lambda data: {"bytes": data.decode("latin-1")}) + "\n"


def _decode_object(value: dict[str, Any]) -> Any:
    text = value.get("bytes")
    return text.encode("latin-1") if isinstance(text, str) and len(value) == 1 else value


class MetadataLog:
    """The tables are dictionaries to read; only `append` changes them.

    Args:
        settings: the file is `kept.jsonl` in its directory: earlier versions named it so.
    """

    def __init__(self, settings: Settings) -> None:
        self.tables: defaultdict[str, dict[Key, Any]] = defaultdict(dict)
        self._store = None
        if settings.directory is not None:
            path = settings.directory / "kept.jsonl"
            self._load(path)
            self._store = Store(path, settings.fsync)

    def append(self, *changes: Change) -> None:
        """Sets values, which consist of JSON and bytes; a value of None deletes its key.

        Raises:
            OSError: the file could not be written; nothing has changed.
        """
        if self._store is not None and changes:
            self._store.append("".join(map(_encode, changes)).encode())
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

    def _load(self, path: Path) -> None:
        """Reads the file and replaces it, atomically, with a compacted one."""
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                table, key, value = json.loads(line, object_hook=_decode_object)
            except ValueError:
                break  # the process ended while it wrote this line
            self._apply(table, tuple(key), value)
        new = path.with_suffix(".new")
        with new.open("w") as file:
            file.writelines(
                _encode((name, key, value))
                for name, table in self.tables.items()
                for key, value in table.items()
            )
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
