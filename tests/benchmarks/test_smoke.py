"""The one test of the benchmarks in the default suite: the command line starts, measures and
reports."""

import json
from pathlib import Path


def test_requested_rows_are_printed_and_written_as_json(program, tmp_path):
    file = tmp_path / "micro.json"
    options = (
        "--quick",
        "--loop",
        "asyncio",
        "--only",
        "cycle",
        "--only",
        "timer-0",
        "--json",
        file,
    )

    printed = program(Path(__file__).parent, "micro", *options, cwd=tmp_path).stdout

    rows = json.loads(file.read_text())["rows"]
    assert [(row["name"], row["loop"]) for row in rows] == [
        ("cycle", "asyncio"),
        ("timer-0", "asyncio"),
    ]
    for row in rows:
        assert row["bare"]["ours"]["median"] > 0 < row["bare"]["theirs"]["median"]
        assert f"{row['name']} on asyncio" in printed
    assert "these figures prove nothing" in printed
