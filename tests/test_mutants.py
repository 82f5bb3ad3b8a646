"""The program that breaks lines of the core, and a small run of it."""

import mutants
import pytest
from mutants import ROOT, parser, run


def test_each_module_has_a_nearest_file():
    tests = ROOT / "tests" / "core"
    for file in (ROOT / "purgatory" / "_core").glob("*.py"):
        if file.stem not in mutants.LEFT_OUT:
            assert all((tests / name).exists() for name in mutants.nearest(file.stem)), file.stem


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nearest_files_notice_most_of_a_small_sample(capsys):
    modules = [f"--module={name}" for name in ("arguments", "loop", "wheel", "watch_lists")]
    options = parser().parse_args(["--count=8", "--seed=1", "--seconds=600", *modules])
    noticed, total = run(options)
    assert total == 8 and noticed >= 6, capsys.readouterr().out
