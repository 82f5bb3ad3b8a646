"""The files and tests that pages and `tiers` name exist: the promises of CONTRIBUTING, the page
*Trust boundaries*, and the nightly tests."""

import re

import pytest
from readme_blocks import ROOT
from tiers import NIGHTLY

TRUSTED = (ROOT / ".docs" / "guide" / "trusted.md").read_text("utf-8")
CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text("utf-8")
TESTS = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("examples/*/tests/test_*.py")]
UNDEFENDED = "a stream's checkpoint"


@pytest.mark.parametrize("place", NIGHTLY)
def test_nightly_place_and_its_exceptions_exist(place):
    files = [file for file in TESTS if str(file.relative_to(ROOT)).startswith(place)]
    assert files
    for name in filter(None, NIGHTLY[place].split("|")):
        assert any(name in file.stem or name in file.read_text("utf-8") for file in files), name


def test_places_of_promises_exist():
    named = re.findall(r"`((?:tests|examples)/[\w/]+\.py)`", CONTRIBUTING)
    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_tests_of_trust_boundaries_exist():
    named = set(re.findall(r"`(test_\w+)`(?!\])", TRUSTED))
    found = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
    assert len(named) >= 20
    assert named <= {name for file in TESTS for name in found.findall(file.read_text("utf-8"))}


def test_every_edge_has_a_file_and_a_test():
    rows = [line.strip("| ").split(" | ") for line in TRUSTED.splitlines() if line[:2] == "| "]
    edges = [row for row in rows if row[0] not in ("edge", "store")]
    assert len(edges) == 13
    for row in edges:
        assert len(row) == 5 and all(row)
        assert UNDEFENDED in row[0] or (".py`](" in row[3] and "/test_" in row[4])


def test_skipping_is_left_to_requirements():
    """Which fails where everything has to be installed."""
    by_itself = re.compile(r"pytest\.skip\(|skipif\(.*(?:which|find_spec)")
    files = (
        file for file in (ROOT / "tests").rglob("*.py") if by_itself.search(file.read_text("utf-8"))
    )
    assert {file.name for file in files} == {"requirements.py"}
