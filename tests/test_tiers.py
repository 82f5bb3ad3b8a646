"""The nightly tests are those that `tiers` names, and its places exist."""

import pytest
from readme_blocks import ROOT
from tiers import NIGHTLY, is_nightly


@pytest.mark.parametrize("place", NIGHTLY)
def test_places_of_nightly_tests_exist(place):
    assert (ROOT / place).exists()


def test_pattern_keeps_slow_tests_in_gate():
    assert not is_nightly("tests/relay/test_stores.py::test_it[redis]")
    assert is_nightly("tests/relay/test_oracle.py::test_it[redis]")
    assert not is_nightly("tests/metrics/test_workers.py::test_it")
