"""The rows about long polls: each starts a server and a process of clients, and reads the clients'
measurements."""

import asyncio
import contextlib
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.cases import LoopName, Setting
from benchmarks.measure import Comparison, Measured, Unmeasurable
from benchmarks.process import run_module

ANSWERS_PER_SECOND = 500
POLLS_PER_EVENT = 10
FACTORS: Final = {"p50": 1e3, "p99": 1e3, "p99.9": 1e3, "cpu": 1e6}
"""The figures of a run, and the factor from seconds to the unit of their row."""

Json = dict[str, Any]


@dataclass(slots=True)
class Load:
    """Open polls under load: both handlers alternately, on the same server and the same
    connections.

    In each run all polls are opened. Events come at random times under random keys; each answers
    ten polls, which are asked again at once. At last all polls are ended. Latency is from the event
    in the server to the answer in the client; CPU is the server process's alone.

    Args:
        polls: how many are open.
        rounds: how many runs each handler has.
        seconds: the length of a run.
        check_interval: seconds after which their handler checks whether its client is still there.

    Attributes:
        runs: the figures on each loop. The first row of this load measures, the others use it
            again.
    """

    polls: int
    rounds: int
    seconds: float
    check_interval: float
    runs: dict[LoopName, list[Json]] = field(default_factory=dict)

    async def row(self, figure: str, setting: Setting) -> Measured:
        """One figure of the load, a key of `FACTORS`: ours against theirs."""
        if setting.loop_name not in self.runs:
            self.runs[setting.loop_name] = await self._measure(setting)
        return compared(self.runs[setting.loop_name], figure)

    async def _measure(self, setting: Setting) -> list[Json]:
        rounds = 1 if setting.quick else self.rounds
        job = {
            "polls": max(POLLS_PER_EVENT, setting.size(self.polls)),
            "rate": ANSWERS_PER_SECOND / POLLS_PER_EVENT,
            "rounds": rounds,
            "seconds": 0.3 if setting.quick else self.seconds,
            "loop": setting.loop_name,
            "seed": setting.random.randrange(2**32),
            "check_interval": self.check_interval,
        }
        runs: list[Json] = []
        async with contextlib.aclosing(measured(job)) as results:
            for _ in setting.track(2 * rounds):
                runs += [await anext(results)]
        return runs


def compared(runs: Sequence[Json], figure: str) -> Measured:
    """A figure of both handlers, and the ratio of the two runs of each round.

    Raises:
        Unmeasurable: there is no round in which both have answered a poll.
    """
    factor = FACTORS[figure]
    ours, theirs = (
        {
            run["round"]: factor * run[figure]
            for run in runs
            if run["path"] == path and figure in run
        }
        for path in ("ours", "theirs")
    )
    rounds = [number for number in ours if number in theirs]
    if not rounds:
        raise Unmeasurable("no poll was answered")
    return Measured(
        Comparison.paired(
            [ours[number] for number in rounds], [theirs[number] for number in rounds]
        )
    )


# -- the processes


@contextlib.asynccontextmanager
async def process(module: str, *arguments: str) -> AsyncIterator[Process]:
    """A process that runs a module, and is killed at the end of the block."""
    command, env = run_module(module, *arguments)
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=PIPE)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def measured(job: Json) -> AsyncGenerator[Json, None]:
    """The measurements of clients on a server of their own.

    Raises:
        RuntimeError: the clients have failed.
    """
    options = ("--loop", job["loop"], "--check-interval", str(job["check_interval"]))
    async with process("benchmarks.http.service", *options) as server:
        assert server.stdout is not None
        port = (await server.stdout.readline()).decode().strip()
        async with process("benchmarks.http.clients", port, json.dumps(job)) as clients:
            assert clients.stdout is not None
            async for line in clients.stdout:
                yield json.loads(line)
            if status := await clients.wait():
                raise RuntimeError(f"the clients ended with status {status}")
