"""The nightly tests are those that `tiers` names; its places, and those of the promises, exist."""

import re

import pytest
from readme_blocks import ROOT
from tiers import NIGHTLY, is_nightly


@pytest.mark.parametrize("place", NIGHTLY)
def test_places_of_nightly_tests_exist(place):
    assert (ROOT / place).exists()


KEPT = [(place, name) for place, names in NIGHTLY.items() for name in names.split("|") if name]


@pytest.mark.parametrize(("place", "name"), KEPT)
def test_tests_that_the_gate_keeps_exist(place, name):
    whole = ROOT / place
    files = [whole] if whole.is_file() else [*whole.rglob("test_*.py")]
    assert any(name in file.stem or name in file.read_text("utf-8") for file in files)


def test_pattern_keeps_slow_tests_in_gate():
    assert not is_nightly("tests/relay/test_stores.py::test_it[redis]")
    assert is_nightly("tests/relay/test_oracle.py::test_it[redis]")
    assert not is_nightly("tests/metrics/test_workers.py::test_it")


def test_places_of_promises_exist():
    page = (ROOT / ".github" / "CONTRIBUTING.md").read_text("utf-8")
    named = re.findall(r"`((?:tests|examples)/[\w/]+\.py)`", page)
    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).exists()] == []
