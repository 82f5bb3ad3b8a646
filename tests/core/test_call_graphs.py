"""asyncio's introspection finds the waiting line of a task."""

import asyncio
import sys

import pytest
from helpers import Probe, iterations
from loops import on_virtual_time

from purgatory import OperationCancelled

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="asyncio has it from 3.14 on")


@on_virtual_time
@pytest.mark.parametrize("kind", ["await", "wait", "wait_for", "receive", "expect"])
async def test_call_graph_leads_to_line_that_waits(purgatory, kind):
    async def service():
        match kind:
            case "await":
                operation = Probe(5)
                purgatory.try_complete_else_watch(operation, ("key",))
                await operation
            case "wait":
                await purgatory.wait(Probe(5), ("key",))
            case "wait_for":
                await purgatory.wait_for(lambda: False, ("key",), 5)
            case "receive":
                await purgatory.receive("key", 5)
            case "expect":
                with purgatory.expect("key", 5) as reply:
                    await reply

    task = asyncio.create_task(service())
    await iterations(2)
    [*inner, outer] = asyncio.capture_call_graph(task).call_stack
    assert outer.frame.f_code is service.__code__
    assert bool(inner) is (kind in ("wait", "wait_for", "receive"))
    purgatory.cancel_for_key("key")
    with pytest.raises(OperationCancelled):
        await task
