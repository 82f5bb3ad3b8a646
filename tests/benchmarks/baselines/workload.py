"""The requests of `load`: when they arrive, how long they take, and which keys they
watch.

They follow Kafka's `TestPurgatoryPerformance`. The intervals come from an exponential distribution,
the times to completion from a log-normal one, which is given by two percentiles; all are whole
milliseconds. A request that takes as long as the timeout or longer is never completed. One thing is
different: Kafka draws three keys once, and all requests watch them; here each request watches three
keys of its own.

Everything random is drawn before the clock starts.
"""

import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, cycle
from math import inf, log

from benchmarks.baselines.purgatories import NEVER_MS

TIMEOUT_MS = 200
POSSIBLE_KEYS = 100
KEYS_PER_REQUEST = 3
KEY_SETS = 4_096
"""How many sets of keys are drawn; the requests take one after the other."""

NORMAL_PERCENTILE_75 = 0.674490
"""The third quartile of the normal distribution with mean 0 and deviation 1."""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long requests take if nothing is late: percentiles in milliseconds."""

    name: str
    median_ms: float
    percentile_75_ms: float


LATENCIES = (Latency("low", 20.0, 60.0), Latency("high", 200.0, 400.0))
"""Their names say how many of the requests will expire."""


class Workload:
    """The requests of one measurement.

    Args:
        requests: how many.
        rate: arrivals per second on average; `inf` for as fast as possible.
        latency: how long the requests take.
        seed: of everything random.

    Attributes:
        arrivals: how many requests arrive in each millisecond; a single element for all of them if
            the rate is infinite.
        latencies_ms: how long each request takes; `NEVER_MS` if that is as long as the timeout or
            longer.
    """

    def __init__(self, requests: int, rate: float, latency: Latency, seed: int) -> None:
        draw = random.Random(seed)
        self.requests = requests
        self.rate = rate
        if rate == inf:
            self.arrivals = [requests]
        else:
            times_ms = list(accumulate(draw.expovariate(rate / 1000.0) for _ in range(requests)))
            self.arrivals = [0] * (int(times_ms[-1]) + 1)
            for time_ms in times_ms:
                self.arrivals[int(time_ms)] += 1
        middle = log(latency.median_ms)
        deviation = log(latency.percentile_75_ms / latency.median_ms) / NORMAL_PERCENTILE_75
        taken_ms = (draw.lognormvariate(middle, deviation) for _ in range(requests))
        self.latencies_ms = array(
            "H", (int(taken) if taken < TIMEOUT_MS else NEVER_MS for taken in taken_ms)
        )
        names = [f"key-{number}" for number in range(POSSIBLE_KEYS)]
        self._key_sets = [tuple(draw.sample(names, KEYS_PER_REQUEST)) for _ in range(KEY_SETS)]

    def key_sets(self) -> Iterator[tuple[str, ...]]:
        """The keys of one request after the other, without end."""
        return cycle(self._key_sets)
