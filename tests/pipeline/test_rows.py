"""The rows of many files: each file's in its place, with any encoding of its columns, and none of a
damaged one."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import damage, operation, replaced

from purgatory import DelayedOperation, Purgatory
from purgatory.journal import OPERATIONS, Journal
from purgatory.pipeline import _rows
from purgatory.pipeline._files import Vanished
from purgatory.pipeline._rows import Damaged, batches, damaged_on_workers, rows_of
from purgatory.testing import VirtualTimeLoop

FILES = 60
TEXT = [("run_id", pa.large_string()), ("keys", pa.large_list(pa.large_string()))]


def written(folder: Path, number: int) -> str:
    """A file of three operations, written in one of five ways."""
    rows = pa.Table.from_pylist([operation(3 * number + place) for place in range(3)], OPERATIONS)
    if number % 5 == 1:
        rows = rows.add_column(3, "more", pa.array([1, 2, 3]))
    elif number % 5 == 2:
        for name, type_ in TEXT:
            rows = replaced(rows, name, type_)
    elif number % 5 == 3:
        rows = rows.select(sorted(rows.column_names))
    elif number % 5 == 4:
        rows = replaced(rows, "attempts", pa.int32())
        rows = replaced(rows, "run_id", rows["run_id"].dictionary_encode())
    file = str(folder / f"{number:03}.parquet")
    pq.write_table(rows, file, write_page_checksum=True, row_group_size=2)
    return file


def damaged_files(*files: str) -> list[str]:
    """The files that Spark cannot read."""
    columns = {"path": files, "content": [Path(file).read_bytes() for file in files]}
    given = pa.RecordBatch.from_pydict({name: pa.array(each) for name, each in columns.items()})
    found = damaged_on_workers(iter([given]), "operations")
    return [path for batch in found for path in batch["path"].to_pylist()]


def rows_in(files: dict[str, int]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    damaged: dict[str, str] = {}
    rows = [row for batch in batches(files, "operations", damaged) for row in batch.to_pylist()]
    return rows, damaged


@pytest.mark.parametrize("batch", [1 << 20, 2_000])
def test_files_are_read_in_order_without_damaged_ones(batch, tmp_path, monkeypatch):
    monkeypatch.setattr(_rows, "BATCH_BYTES", batch)
    files = [written(tmp_path, number) for number in range(FILES)]
    damage(Path(files[20]), "zeroed")
    sizes = {file: Path(file).stat().st_size for file in files}

    rows, damaged = rows_in(sizes)

    assert [*damaged] == damaged_files(*files) == [files[20]]
    expected = [operation(each) | {"file": files[each // 3]} for each in range(3 * FILES)]
    sound = [[row for row in each if row["file"] not in damaged] for each in (rows, expected)]
    assert sound[0] == sound[1]
    Path(files[30]).unlink()
    with pytest.raises(Vanished):
        rows_in(sizes)


def test_missing_column_is_null_and_extra_is_ignored(tmp_path):
    rows = pa.Table.from_pylist([operation(number) for number in range(500)], OPERATIONS)
    noise = pa.array([f"{number}" * 50 for number in range(500)])
    more = tmp_path / "more.parquet"
    pq.write_table(
        rows.drop_columns("timeout_s").add_column(0, "more", noise),
        more,
        write_page_checksum=True,
        compression="none",
    )
    content = bytearray(more.read_bytes())
    content[1000:2000] = bytes(1000)  # in a column that is not read
    more.write_bytes(content)

    found, damaged = rows_in({str(more): 1})

    assert damaged == {}
    assert found == [
        operation(number, timeout_s=None) | {"file": str(more)} for number in range(500)
    ]


RUN_ID, LOCAL = OPERATIONS.field("run_id"), pa.timestamp("us")
WRONG = {
    "has the column run_id more than once": lambda rows: rows.append_column(RUN_ID, rows["run_id"]),
    "column ended_at is timestamp[us], not timestamp[us, tz=UTC]": lambda rows: replaced(
        rows, "ended_at", LOCAL
    ),
    "column operation_id is string, not int64": lambda rows: replaced(
        rows, "operation_id", pa.string()
    ),
}


@pytest.mark.parametrize("reason", WRONG)
def test_column_of_another_kind_is_damage(reason, tmp_path):
    file = str(tmp_path / "rows.parquet")
    pq.write_table(WRONG[reason](pa.Table.from_pylist([operation(0)], OPERATIONS)), file)

    assert rows_in({file: 1}) == ([], {file: reason})


INSTANTS = {
    "INT96": {"use_deprecated_int96_timestamps": True},
    "ns, tz=Asia/Tokyo": {"version": "2.6"},
    "ms, tz=UTC": {"version": "2.6"},
}


@pytest.mark.parametrize("instants", INSTANTS)
def test_rewritten_instants_are_read_as_written(instants, tmp_path):
    rows = pa.Table.from_pylist([operation(number) for number in range(3)], OPERATIONS)
    unit, _, zone = instants.partition(", tz=")
    for name in ("started_at", "ended_at") if zone else ():
        rows = replaced(rows, name, pa.timestamp(unit, zone))
    file = str(tmp_path / "rows.parquet")
    pq.write_table(rows, file, store_schema=False, **INSTANTS[instants])

    assert rows_in({file: 1}) == ([operation(number) | {"file": file} for number in range(3)], {})
    assert len(damaged_files(file)) == instants.startswith("ns")


class Never(DelayedOperation[None]):
    def try_complete(self) -> bool:
        return False


@pytest.mark.parametrize("folder", ["operations", "checks"])
def test_bit_flip_never_yields_wrong_rows(folder, tmp_path):
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
