"""The program that breaks lines of the core tells a broken line from an equal one. The share that
the tests notice is measured by the program, over more than a small sample."""

import mutants
import pytest
from mutants import ROOT, Copy, Mutant, nearest


def test_each_module_has_a_nearest_file():
    tests = ROOT / "tests" / "core"
    for file in (ROOT / "purgatory" / "_core").glob("*.py"):
        if file.stem not in mutants.LEFT_OUT:
            assert all((tests / name).exists() for name in mutants.nearest(file.stem)), file.stem


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_only_a_broken_line_is_noticed(tmp_path):
    copy = Copy(tmp_path)
    file = copy.core / "arguments.py"
    source = file.read_text()
    line = "    if drain < 0.0:\n"
    assert line in source and copy.passes(nearest("arguments"))

    for changed, is_noticed in (("    if False:\n", True), ("    if 0.0 > drain:\n", False)):
        mutant = Mutant("arguments", 0, changed, source.replace(line, changed))
        assert copy.is_noticed(mutant) is is_noticed
    assert file.read_text() == source
