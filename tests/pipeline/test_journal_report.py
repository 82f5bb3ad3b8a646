"""From a purgatory to the report: the report counts all rows of the journal."""

import asyncio
import random
from pathlib import Path

import pytest
from journals import account, report, table

from purgatory import DelayedOperation, Purgatory
from purgatory.journal import Journal
from purgatory.pipeline._rows import Damaged, rows_of
from purgatory.pipeline.compact import compact
from purgatory.testing import VirtualTimeLoop

CHECKS = 5_000


class Never(DelayedOperation[None]):
    def try_complete(self) -> bool:
        return False


def journal_of_one_second(folder: Path) -> None:
    """Checks of one key in one second, which fill several files."""

    async def main() -> None:
        with Journal(folder, file_bytes=1) as journal:
            async with Purgatory("letters", observer=journal) as purgatory:
                purgatory.try_complete_else_watch(Never(), ["key"])
                for _ in range(CHECKS):
                    purgatory.check_and_complete("key")

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_a_second_that_several_files_share_counts_whole(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal_of_one_second(journal)
    files = sorted((journal / "checks").iterdir())
    assert len(files) > 2

    for step in ("as written", "with a copy", "compacted"):
        if step == "with a copy":
            files[0].with_name("copy.parquet").write_bytes(files[0].read_bytes())
        elif step == "compacted":
            compact(journal / "checks", "checks", older_than=-3600)
            assert len([*(journal / "checks").iterdir()]) == 1

        report(journal, tmp_path / step)

        [row] = table(tmp_path / step, "keys")
        assert (row.key, row.checks, row.tried, row.completed) == ("key", CHECKS, CHECKS, 0)
        counts = account(table(tmp_path / step, "reconciliation"))
        assert counts["checks", "duplicates dropped"] == (step != "as written")


@pytest.mark.parametrize("folder", ["operations", "checks"])
def test_bit_flip_never_yields_wrong_rows(folder: str, tmp_path: Path) -> None:
    async def main() -> None:
        with Journal(tmp_path) as journal:
            async with Purgatory("letters", observer=journal) as purgatory:
                for number in range(200):
                    purgatory.try_complete_else_watch(Never(timeout=1.0), [f"key-{number}"])
                    purgatory.check_and_complete(f"key-{number}")
                await asyncio.sleep(2)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
    [file] = (tmp_path / folder).iterdir()
    written, rows = file.read_bytes(), rows_of(str(file), None, folder)
    begin_of_footer = len(written) - 8 - int.from_bytes(written[-8:-4], "little")
    chance = random.Random(9)
    found = 0

    for _ in range(300):
        damaged = bytearray(written)
        damaged[chance.randrange(4, begin_of_footer)] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        try:
            read = rows_of(str(file), None, folder)
        except Damaged:
            found += 1
        else:
            assert read.equals(rows)  # it was in metadata of Parquet's pages, which is not read
    assert found > 200
