"""An operation, a timer and a timeout are known by their identity, and refuse to be copied."""

import copy
import pickle

import pytest
from helpers import Probe, watch_all
from loops import on_virtual_time

from purgatory import WheelTimer, timeout


@on_virtual_time
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("is_watched", [False, True])
async def test_copies_are_refused_and_change_nothing(purgatory, way, is_watched):
    operation, timer = Probe(5), WheelTimer()
    task = timer.call_later(5, print)
    if is_watched:
        watch_all(purgatory, [operation])
    async with timeout(5) as limit:
        for original in (operation, task, limit):
            with pytest.raises(TypeError, match="it is known by its identity"):
                way(original)
    assert (purgatory.pending, timer.size) == (is_watched, 1)
    task.cancel()
    operation.cancel()
