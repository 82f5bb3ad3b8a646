"""Compares the output of `stream` with tasks in a `ThresholdPurgatory` on the same events, to the
last row.

    python tests/pipeline/check_stream.py --operations 300000 --signals 1000000 OUT

The arguments are those that `orders.py` made the input with. Exits with 1 and shows rows if there
is a difference.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
from orders import INSTANT, Traffic, traffic

from purgatory import OperationTimeout, ThresholdPurgatory
from purgatory.testing import VirtualTimeLoop

UNIT = 1 / 1024
"""A float that no sum of instants rounds, and small enough that deadlines are days away at most."""

Row = tuple[str, str, int, tuple[str, ...]]
"""An id, its outcome, when it was decided on, and the satisfied keys."""


def by_thresholds(made: Traffic) -> list[Row]:
    """The outcomes of operations whose tasks wait in a `ThresholdPurgatory`, on virtual time.

    A microsecond is `UNIT` of the loop. A deadline is half of that after its instant, so that a
    signal at the same instant still counts.
    """
    rows: list[Row] = []
    events = sorted(
        [(at, 0, key, value) for key, value, at in made.signals]
        + [(operation[3], 1, *operation) for operation in made.operations]
    )
    start = events[0][0] if events else 0

    async def main() -> None:
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()
        async with ThresholdPurgatory[str, int](tick=UNIT / 2) as purgatory:
            for at, what, *event in events:
                if (ahead := (at - start) * UNIT - loop.time()) > 0:
                    await asyncio.sleep(ahead)
                if what:
                    task = asyncio.create_task(decide(purgatory, *event))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    await asyncio.sleep(0)
                else:
                    key, value = event
                    known = purgatory.value(key)
                    if known is None or value > known:
                        purgatory.advance(key, value)
            await asyncio.gather(*tasks)

    async def decide(purgatory, operation_id, requirements, mode, _, deadline) -> None:
        loop = asyncio.get_running_loop()
        until = (deadline - start + 0.5) * UNIT
        waits = [
            asyncio.create_task(purgatory.wait(*requirement, until - loop.time()))
            for requirement in requirements
        ]
        left: set[asyncio.Task[int]] = set(waits)
        while left:
            left = (await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED))[1]
            for _ in range(
                3
            ):  # tasks of one instant get their results in the same iterations of the loop
                await asyncio.sleep(0)
            if is_complete(waits, mode):
                break
        outcome = "completed" if is_complete(waits, mode) else "expired"
        satisfied = tuple(
            key for (key, _), wait in zip(requirements, waits, strict=True) if succeeded(wait)
        )
        rows.append((operation_id, outcome, int(loop.time() / UNIT) + start, satisfied))
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
    return sorted(rows)


def is_complete(waits: list["asyncio.Task[int]"], mode: str) -> bool:
    return (all if mode == "all" else any)(map(succeeded, waits))


def succeeded(wait: "asyncio.Task[int]") -> bool:
    if not wait.done() or wait.cancelled():
        return False
    if (error := wait.exception()) is not None and not isinstance(error, OperationTimeout):
        raise error
    return error is None


def written(out: Path) -> list[Row]:
    """The rows of the files that Spark committed to `out`; a crash may leave further files."""
    from purgatory.pipeline._session import spark_session

    with spark_session("check", "local[1]") as spark:
        spark.read.parquet(str(out)).where("outcome <> 'late'").write.mode("overwrite").parquet(
            str(out) + ".checked"
        )
    table = ds.dataset(str(out) + ".checked").to_table()
    decided = table["decided_at"].cast(INSTANT).cast("int64")
    columns = table["operation_id"].to_pylist(), table["outcome"].to_pylist(), decided.to_pylist()
    return sorted(zip(*columns, map(tuple, table["satisfied_keys"].to_pylist()), strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--operations", type=int, default=300_000)
    parser.add_argument("--signals", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    began = time.process_time()
    made = traffic(options.operations, options.signals, seconds=options.seconds, seed=options.seed)
    expected = by_thresholds(made)
    print(
        f"asyncio: {Counter(row[1] for row in expected)} in {time.process_time() - began:.0f} "
        "CPU seconds"
    )
    newest = max(made.operations[-1][3], made.signals[-1][2])
    expected = [row for row in expected if row[2] <= newest]
    found = written(options.out)
    print(
        f"due by the newest event: {len(expected)}; written: {len(found)}, "
        f"{len({row[0] for row in found})} different ids"
    )
    wrong = sorted(set(expected) ^ set(found))
    print(*wrong[:20], sep="\n")
    print("they are equal to the last row" if expected == found else f"{len(wrong)} rows DIFFER")
    sys.exit(expected != found)
