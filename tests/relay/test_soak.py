"""Short runs of the soak, which differ in the cause of lost messages; the long run is `python
tests/relay/relay_soak.py`."""

import asyncio

import pytest
from relay_soak import soak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "forget_after"),
    [
        ("file: deleted", 0.0),
        ("redis: connections killed", 0.0),
        ("postgresql: killed", 0.0),
        ("nats: killed", 0.0),
        ("file: nothing", 0.1),
        ("redis: connections killed", 0.1),
        ("postgresql: connections killed", 0.1),
        ("nats: nothing", 0.1),
    ],
)
def test_no_wait_outlives_failure_or_ends_early(name: str, forget_after: float) -> None:
    result = asyncio.run(soak(name, seconds=2.0, waits=60, resync=1.0, forget_after=forget_after))
    assert result.answers > 60
    assert (result.early, result.behind, result.twice) == (0, 0, 0)
