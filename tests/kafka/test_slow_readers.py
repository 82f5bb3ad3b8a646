"""Slow readers, few and for a short time: they are measured, and cost our broker less than they
have fetched."""

import pytest
import slow_readers


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--directory"]])
def test_slow_readers_cost_little_memory(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--readers", "10", "--size", "20", "--seconds", "1", "--rounds", "1", "--only", "ours"]

    assert slow_readers.main([*small, *options]) == 0

    kind, memory, longest, waiting, computing = capsys.readouterr().out.splitlines()[1].split()
    assert kind == "ours"
    assert int(memory) < 64  # MiB; ten readers, one response of 1 MiB each
    assert float(longest) > 0 and float(waiting) >= 0 and float(computing) > 0
