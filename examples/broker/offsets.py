"""What groups have committed, and who is in them: in memory and, where there is a directory, in one append-only file.

Each line of the file is a change in JSON, `[group, kind, value]`. It is read through at the start, up to the first line that is
not whole, and written anew when most of its lines are out of date.
"""

import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from .topics import replace

FEW_LINES: Final = 10_000  # are not worth the trouble


class Committed(NamedTuple):
    """An offset, the leader's epoch that the consumer saw, and what it noted down."""

    offset: int
    epoch: int
    note: str


Place = tuple[str, int]


class Offsets:
    """The offsets of all groups, and their members as the coordinator last wrote them down.

    Args:
        directory: where `groups.jsonl` is; None for memory alone.
        fsync: each change is on the disk before it is answered.
    """

    def __init__(self, directory: Path | None, fsync: bool) -> None:
        self.by_group: dict[str, dict[Place, Committed]] = {}
        self.members: dict[str, Any] = {}
        self._path = None if directory is None else directory / "groups.jsonl"
        self._fsync = fsync
        if self._path is not None:
            self._read(self._path)
            self._write_anew(self._path)

    def commit(self, group: str, offsets: dict[Place, Committed]) -> None:
        """A group has come so far."""
        self._change(group, "offsets", [[*place, *committed] for place, committed in offsets.items()])

    def keep_members(self, group: str, members: Any) -> None:
        """Who is in a group, as JSON."""
        if self._path is not None:
            self._change(group, "members", members)

    def forget(self, group: str) -> None:
        """A group is deleted."""
        self._change(group, "deleted", None)

    def forget_topic(self, topic: str) -> None:
        """A topic is deleted; one that is created in its place begins anew for all groups."""
        for group, offsets in self.by_group.items():
            if any(place[0] == topic for place in offsets):
                self._change(group, "topic deleted", topic)

    def close(self) -> None:
        """Closes the file."""
        if self._path is not None:
            self._file.close()

    # -- changes

    def _change(self, group: str, kind: str, value: Any) -> None:
        if self._path is not None:
            self._file.write(json.dumps([group, kind, value]) + "\n")
            self._file.flush()
            if self._fsync:
                os.fsync(self._file.fileno())
        self._apply(group, kind, value)
        if self._path is not None:
            self._lines += 1
            if self._lines > max(FEW_LINES, 10 * len(self.by_group)):
                self._file.close()
                self._write_anew(self._path)

    def _apply(self, group: str, kind: str, value: Any) -> None:
        if kind == "deleted":
            self.by_group.pop(group, None)
            self.members.pop(group, None)
        elif kind == "members":
            self.members[group] = value
        elif kind == "topic deleted":
            offsets = self.by_group[group]
            for place in [place for place in offsets if place[0] == value]:
                del offsets[place]
        else:
            offsets = self.by_group.setdefault(group, {})
            for topic, index, *committed in value:
                offsets[topic, index] = Committed(*committed)

    def _read(self, path: Path) -> None:
        if not path.exists():
            return
        with path.open() as file:
            for line in file:
                try:
                    change = json.loads(line)
                except ValueError:
                    break  # the process ended while it wrote this
                self._apply(*change)

    def _write_anew(self, path: Path) -> None:
        changes = [[group, "members", members] for group, members in self.members.items()]
        changes += [
            [group, "offsets", [[*place, *committed] for place, committed in offsets.items()]]
            for group, offsets in self.by_group.items()
        ]
        replace(path, "".join(json.dumps(change) + "\n" for change in changes))
        self._file = path.open("a")
        self._lines = len(changes)
