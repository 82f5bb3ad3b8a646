"""Which loop is the running one: after a fork, and where asyncio's function was replaced."""

import asyncio
import os
from asyncio import events

import pytest
from helpers import Probe

from purgatory import IdleTracker, Purgatory, ThresholdPurgatory, WheelTimer, WrongLoop, timeout


def test_function_of_asyncio_may_be_replaced_later(monkeypatch):
    """trio-asyncio replaces it when it is imported."""
    loop = asyncio.new_event_loop()
    with monkeypatch.context() as patch:
        patch.setattr(events, "_get_running_loop", lambda: loop)
        patch.setattr(events, "get_running_loop", lambda: loop)
        purgatory, operation = Purgatory(), Probe()
        assert not purgatory.try_complete_else_watch(operation, ["key"])
        assert purgatory.check_and_complete("key") == 0
        assert operation.cancel()
        with pytest.raises(StopIteration) as ended:
            thresholds = ThresholdPurgatory()
            thresholds.advance("key", 1)
            thresholds.wait("key", 1).send(None)
        assert ended.value.value == 1
        with WheelTimer() as timer, IdleTracker(5, print) as tracker:
            assert timer.call_later(5, print).cancel()
            tracker.touch("id")
            assert tracker.remove("id")
        assert timeout(5).when() is not None
    with pytest.raises(WrongLoop):
        purgatory.check_and_complete("key")
    loop.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_child_of_a_running_loop_has_none():
    purgatory = Purgatory()
    assert not purgatory.try_complete_else_watch(operation := Probe(), ["key"])
    child = os.fork()
    if not child:
        try:
            purgatory.check_and_complete("key")
        except WrongLoop:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 - it ends at once
    assert operation.cancel()
