"""The one test of the benchmarks in the default suite: the command line starts, measures a row and says what it found."""

import json
from pathlib import Path

def test_the_command_line_measures_a_row_prints_it_and_writes_it_as_json(program, tmp_path):
    file = tmp_path / "micro.json"
    options = ("--quick", "--loop", "asyncio", "--only", "timer-0", "--json", file)

    printed = program(Path(__file__).parent, "micro", *options, cwd=tmp_path).stdout

    [row] = json.loads(file.read_text())["rows"]
    assert (row["name"], row["loop"], row["verdict"] in ("met", "missed")) == ("timer-0", "asyncio", True)
    assert row["bare"]["ours"]["median"] > 0 < row["bare"]["theirs"]["median"]
    assert "timer-0 on asyncio" in printed and "these figures prove nothing" in printed
