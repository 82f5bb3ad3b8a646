"""The number of operations that have ended in a run, in a file that a crash leaves behind.

    runs/abc      the number, updated four times a second; deleted once all operations are in files

When a process is killed, the rows in its memory are lost. This file has their number.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from purgatory.journal._schema import RUNS

DIGITS: Final = 20


class RunCounter:
    """The file of one run.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, directory: Path, run_id: str) -> None:
        self._path = directory / RUNS / run_id
        self._create(0)

    def _create(self, count: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("xb", buffering=0)
        self._count = -1
        self.update(count)

    def restore(self) -> None:
        """Creates the file again if its folder was removed.

        Raises:
            OSError: the file cannot be created.
        """
        if not self._path.exists():
            removed = self._file
            self._create(self._count)
            removed.close()

    def update(self, count: int) -> None:
        """Overwrites the number in place. Its length never changes, so this works on a full
        disk."""
        if count != self._count:
            with suppress(OSError):  # the next update tries again
                self._file.seek(0)
                self._file.write(f"{count:0{DIGITS}d}\n".encode())
                self._count = count

    def close(self, *, is_all_written: bool) -> None:
        """Closes the file, and deletes it unless something was lost."""
        self._file.close()
        if is_all_written:
            with suppress(OSError):
                self._path.unlink()
