"""`purgatory.asgi._wait`: the phases of a poll, and the moves between them."""

from itertools import product
from typing import Any

import pytest

from purgatory.asgi import LongPolls, Poll
from purgatory.asgi._client import Client
from purgatory.asgi._wait import MOVES, Phase


async def receive() -> Any:
    raise AssertionError


def test_the_moves_of_the_table_and_no_others_are_legal():
    poll = Poll(LongPolls(signals=()), {}, Client(receive), 1.0)
    for before, after in product(Phase, Phase):
        poll._phase = before
        if after in MOVES[before]:
            poll._move(after)
            assert poll._phase is after
        else:
            with pytest.raises(AssertionError):
                poll._move(after)
            assert poll._phase is before


def test_every_phase_is_left_and_come_to():
    assert set(MOVES) == set(Phase)
    assert set().union(*MOVES.values()) == set(Phase)
