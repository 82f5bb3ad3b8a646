"""The end of a purgatory: it refuses new work, gives what is pending time to end by itself, and answers everybody else."""

from asyncio import sleep
from itertools import islice

from anyio import move_on_after

from purgatory._engine import Engine, Operation
from purgatory._timer import PORTION
from purgatory._wheel import SNAPSHOT


async def close(engine: Engine, drain: float) -> list[Operation]:
    """Closes `engine`: see `Purgatory.aclose`. What it returns are the operations that it cancelled."""
    engine.closed = engine.limited = True
    engine.kinds.clear()  # so that each operation is looked at, and refused
    try:
        await _let_end(engine, drain)
    except BaseException:
        await _cancel_rest(engine, at_once=True)
        raise
    return await _cancel_rest(engine, at_once=False)


async def _let_end(engine: Engine, drain: float) -> None:
    """Waits until nothing is pending, for at most `drain` seconds."""
    if len(engine.watchers) and drain > 0.0:
        drained = engine.loop.create_future()
        engine.drained.append(drained)
        engine.observed = True
        try:
            with move_on_after(drain):
                await drained
        finally:
            engine.drained.remove(drained)


async def _cancel_rest(engine: Engine, at_once: bool) -> list[Operation]:
    """Cancels what is pending, a portion per turn of the loop, and lets the hooks run that were put off.

    If its task is cancelled meanwhile, it does the rest at once, and then raises; the hooks follow in the next turns.
    """
    cancelled: list[Operation] = []
    interrupted: BaseException | None = None
    left = PORTION
    while len(engine.watchers):
        for key in list(islice(engine.by_key, SNAPSHOT)):
            while found := engine.watchers.first_of(key):
                cancelled += [operation for operation in found if operation.cancel()]
                left -= len(found)
                if left <= 0 and not at_once:
                    left = PORTION
                    try:
                        await sleep(0)
                    except BaseException as error:
                        interrupted, at_once = error, True
    if interrupted is not None:
        raise interrupted
    if not at_once:
        await engine.room.claimed_by_now()
    return cancelled
