"""The rows of a file: all as they were written, or none."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import check, operation, write

from purgatory.journal import FOLDERS
from purgatory.pipeline._rows import Damaged, damaged_on_workers, rows_of

ROWS = {
    "operations": [operation(number, keys=[f"key-{number}"]) for number in range(200)],
    "checks": [check(number, key=f"key-{number}") for number in range(200)],
}


def damaged_files(*files: Path) -> list[str]:
    """The files that Spark cannot read."""
    columns = {"path": list(map(str, files)), "content": [file.read_bytes() for file in files]}
    found = damaged_on_workers(iter([pa.RecordBatch.from_pydict(columns)]), "operations")
    return [path for batch in found for path in batch["path"].to_pylist()]


def test_nanoseconds_are_read_except_on_spark(tmp_path):
    rows, files = ROWS["operations"], []
    for unit in ("ns", "ms"):
        type_ = pa.timestamp(unit, "Asia/Tokyo")
        files.append(write(tmp_path, "operations", unit, rows, started_at=type_, ended_at=type_))

        assert rows_of(str(files[-1]), None, "operations").to_pylist() == rows

    wrong = write(tmp_path, "operations", "wrong", rows[:1], run_id=[[1]])
    cut = write(tmp_path, "operations", "cut", rows)
    cut.write_bytes(cut.read_bytes()[:-9])
    assert damaged_files(*files, wrong, cut) == [str(files[0]), str(wrong), str(cut)]


@pytest.mark.parametrize("folder", ROWS)
def test_bit_flip_never_yields_wrong_rows(folder, tmp_path):
    file = tmp_path / "x.parquet"
    made = pa.Table.from_pylist(ROWS[folder], FOLDERS[folder])
    pq.write_table(made, file, write_page_checksum=True)
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
