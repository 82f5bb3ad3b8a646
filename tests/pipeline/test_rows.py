"""The rows of many files: each file's in its place, with any encoding of its columns, and none of a
damaged one."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import damage, operation

from purgatory.journal import OPERATIONS
from purgatory.pipeline import _rows
from purgatory.pipeline._files import Part
from purgatory.pipeline._rows import TYPES, damaged_files, read

FILES = 250
TEXT = [("run_id", pa.large_string()), ("keys", pa.large_list(pa.large_string()))]


@pytest.fixture
def three_processors() -> Iterator[None]:
    before = pa.cpu_count()
    pa.set_cpu_count(3)
    yield
    pa.set_cpu_count(before)


def written(folder: Path, number: int) -> Part:
    """A file of three operations, written in one of four ways."""
    rows = pa.Table.from_pylist([operation(3 * number + place) for place in range(3)], OPERATIONS)
    if number % 4 == 1:
        rows = rows.add_column(3, "more", pa.array([1, 2, 3]))
    elif number % 4 == 2:
        for name, type_ in TEXT:
            rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(type_))
    elif number % 4 == 3:
        rows = rows.select(sorted(rows.column_names))
    pq.write_table(rows, folder / f"{number:03}.parquet", write_page_checksum=True)
    return Part(str(folder / f"{number:03}.parquet"))


@pytest.mark.usefixtures("three_processors")
@pytest.mark.parametrize("small", [_rows.SMALL_FILE_BYTES, 0])
def test_files_are_read_in_order_without_damaged_ones(
    small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_rows, "SMALL_FILE_BYTES", small)
    parts = [written(tmp_path, number) for number in range(FILES)]
    damage(Path(parts[120].file), "zeroed")
    Path(parts[220].file).unlink()

    rows = read(parts, "operations")

    left = [number for number in range(FILES) if number not in {120, 220}]
    assert rows.files == [parts[number].file for number in left] and rows.counts == [3] * len(left)
    assert rows.has_vanished and [*rows.damaged] == [parts[120].file]
    assert rows.table.schema == TYPES["operations"]
    written_there = [operation(3 * number + place) for number in left for place in range(3)]
    assert rows.table.to_pylist() == pa.Table.from_pylist(written_there, OPERATIONS).to_pylist()


def test_unreadable_file_yields_no_rows(tmp_path: Path) -> None:
    rows = read([Part(str(tmp_path / "none.parquet"))], "operations")

    assert rows.has_vanished and not rows.files and rows.table == TYPES["operations"].empty_table()


@pytest.mark.parametrize("small", [_rows.SMALL_FILE_BYTES, 0])
def test_duplicate_column_is_damage_and_extra_is_ignored(
    small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_rows, "SMALL_FILE_BYTES", small)
    rows = pa.Table.from_pylist([operation(number) for number in range(500)], OPERATIONS)
    pq.write_table(
        rows.append_column(OPERATIONS.field("run_id"), rows["run_id"]), tmp_path / "twice.parquet"
    )
    noise = pa.array([f"{number}" * 50 for number in range(500)])
    pq.write_table(
        rows.add_column(0, "more", noise),
        tmp_path / "more.parquet",
        write_page_checksum=True,
        compression="none",
    )
    content = bytearray((tmp_path / "more.parquet").read_bytes())
    content[1000:2000] = bytes(1000)  # in a column that is not read
    (tmp_path / "more.parquet").write_bytes(content)

    found = read(
        [Part(str(tmp_path / name)) for name in ("twice.parquet", "more.parquet")], "operations"
    )

    assert found.damaged == {
        str(tmp_path / "twice.parquet"): "has the column run_id more than once"
    }
    assert found.table["operation_id"].to_pylist() == [*range(500)]


@pytest.mark.parametrize("count", [_rows.FEW_ROWS, _rows.FEW_ROWS + 1])
def test_row_count_of_small_file_changes_nothing(count: int, tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([operation(number) for number in range(count)], OPERATIONS)
    pq.write_table(rows, tmp_path / "rows.parquet")

    assert (
        read([Part(str(tmp_path / "rows.parquet"))], "operations").table.to_pylist()
        == rows.to_pylist()
    )


INSTANTS = {
    "INT96": {"use_deprecated_int96_timestamps": True},
    "ns, tz=Asia/Tokyo": {"version": "2.6"},
    "ms, tz=UTC": {"version": "2.6"},
}


@pytest.mark.parametrize("instants", INSTANTS)
def test_rewritten_instants_are_read_as_written(instants: str, tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([operation(number) for number in range(3)], OPERATIONS)
    unit, _, zone = instants.partition(", tz=")
    for name in ("started_at", "ended_at") if zone else ():
        place = rows.column_names.index(name)
        rows = rows.set_column(place, name, rows[name].cast(pa.timestamp(unit, zone)))
    pq.write_table(rows, tmp_path / "rows.parquet", store_schema=False, **INSTANTS[instants])

    found = read([Part(str(tmp_path / "rows.parquet"))], "operations")

    assert found.damaged == {}
    assert found.table.to_pylist() == [operation(number) for number in range(3)]
    on_spark = damaged_files([str(tmp_path / "rows.parquet")], "operations", whole=False)
    assert len(on_spark) == instants.startswith("ns")


def test_timestamps_without_a_zone_are_refused(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([operation(0)], OPERATIONS)
    place = rows.column_names.index("ended_at")
    naive = rows["ended_at"].cast(pa.timestamp("us"))
    pq.write_table(rows.set_column(place, "ended_at", naive), tmp_path / "rows.parquet")

    found = read([Part(str(tmp_path / "rows.parquet"))], "operations")

    [reason] = found.damaged.values()
    assert reason == "column ended_at is timestamp[us], not timestamp[us, tz=UTC]"
