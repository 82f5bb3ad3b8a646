"""Each program of the benchmarks starts, measures and reports."""

import json
from pathlib import Path

import pytest

PROGRAMS = [
    "micro --loop asyncio --only cycle --only timer-0",
    "threads --rounds 1",
    *(
        pytest.param(words, marks=pytest.mark.slow)
        for words in (
            "http --polls 1000",
            "load --java --rate 105000 --timeouts high",
            "relay --rate 200",
        )
    ),
]


@pytest.mark.parametrize("words", PROGRAMS)
def test_program_prints_figures_and_writes_them(words, program, tmp_path):
    file = tmp_path / "figures.json"
    options = (*words.split(), "--quick", "--json", file)

    printed = program(Path(__file__).parent, *options, cwd=tmp_path, timeout=600).stdout

    assert "prove nothing" in " ".join(printed.split())
    assert json.loads(file.read_text())["rows"]
