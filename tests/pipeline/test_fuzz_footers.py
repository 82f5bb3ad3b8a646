"""Damaged and hostile Parquet footers: an error or rows, never a path, and bounded memory."""

import json
import random
import resource
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journals import random_operations

from purgatory.journal import OPERATIONS
from purgatory.pipeline._files import (
    REPLACES,
    UNREADABLE,
    is_visible,
    replaced_by,
    replaced_names,
    row_groups_of,
)

pytestmark = pytest.mark.slow

MAX_GROWTH = 400_000  # KB; a footer of 10 KB that was taken at its word would take gigabytes
NAMES = ["run-0.parquet", "run-1.parquet", "../up.parquet", "/etc/passwd", "", "a\nb.parquet"]


def parquet(metadata: bytes) -> bytes:
    rows = pa.Table.from_pylist(random_operations(random.Random(1), 20), OPERATIONS)
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata({REPLACES: metadata}), sink, row_group_size=7)
    return bytes(sink.getvalue())


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    """A file of a journal with some bytes of its footer changed, inserted or removed."""
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4))
    whole = parquet(json.dumps(names).encode())
    size = int.from_bytes(whole[-8:-4], "little")
    body, footer = whole[: -8 - size], bytearray(whole[-8 - size : -8])
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(0, len(footer) - 1)))
        way = draw(st.sampled_from(["set", "flip", "insert", "remove", "huge"]))
        if way == "set" and footer:
            footer[at] = draw(st.integers(0, 255))
        elif way == "flip" and footer:
            footer[at] ^= 1 << draw(st.integers(0, 7))
        elif way == "insert":
            footer[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif way == "remove":
            del footer[at : at + draw(st.integers(1, 20))]
        else:  # a varint of 2**63 and less: lengths and counts
            footer[at : at + 1] = b"\xff" * draw(st.integers(1, 9)) + b"\x7f"
    announced = draw(st.sampled_from([len(footer), 0, len(footer) + 1, 2**31 - 1, 2**32 - 1]))
    return body + footer + announced.to_bytes(4, "little") + b"PAR1"


@settings(
    max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=damaged_files())
def test_footers_name_plain_files_or_nothing(tmp_path: Path, content: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    file = tmp_path / "compacted-0.parquet"
    file.write_bytes(content)

    for name in replaced_by(str(file)):
        assert Path(name).parent == tmp_path and is_visible(Path(name).name)
    assert all(isinstance(count, int) for count in row_groups_of(str(file)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH


@settings(max_examples=1000, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.sampled_from(NAMES),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=10,
    )
)
def test_any_json_footer_yields_names_or_nothing(value: object) -> None:
    try:
        names = replaced_names(pa.BufferReader(parquet(json.dumps(value).encode())))
    except UNREADABLE:
        return
    assert names == value and all(map(is_visible, names))
