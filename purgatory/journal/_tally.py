"""How many operations a run has had, in a file of its own that a crash leaves behind.

    runs/abc      the number, brought up to date four times a second, gone once all of them are in files

What is still in memory when a process is killed is in no file; this says how much that was.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from purgatory.journal._schema import RUNS

DIGITS: Final = 20


class Tally:
    """The file of one run.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, directory: Path, run_id: str) -> None:
        folder = directory / RUNS
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / run_id
        self._file = self._path.open("xb", buffering=0)
        self._told = -1
        self.tell(0)

    def tell(self, operations: int) -> None:
        """Writes the number, in place: the length stays, so that a full disk is no reason to fail."""
        if operations != self._told:
            with suppress(OSError):  # it is told again
                self._file.seek(0)
                self._file.write(f"{operations:0{DIGITS}d}\n".encode())
                self._told = operations

    def close(self, *, is_all_written: bool) -> None:
        """The last word: the file stays where something was lost."""
        self._file.close()
        if is_all_written:
            with suppress(OSError):
                self._path.unlink()
