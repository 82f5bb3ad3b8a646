"""Short runs of the soak, which differ in what loses messages; the long one is `python tests/relay/relay_soak.py`."""

import asyncio

import pytest
from relay_soak import soak


@pytest.mark.slow
@pytest.mark.parametrize("name", ["file: deleted", "redis: connections killed", "postgresql: killed"])
def test_no_wait_of_any_process_outlives_the_failure_and_none_ends_early(name: str) -> None:
    result = asyncio.run(soak(name, seconds=2.0, waits=60, resync=1.0))
    assert result.answers > 60
    assert (result.early, result.behind) == (0, 0)
