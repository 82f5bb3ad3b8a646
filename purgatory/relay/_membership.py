r"""Lists the other processes. Calls and rows are delivered values, so strangers to the store can
neither read nor forge them.

    A settles "\0workers" for 3 s              when the list is requested in A
    B hears of it, and settles                at once, as A does
    "\0workers/5c02d1/17" with its details
    A hears of that key, reads it, and        10 s later it is no longer listed
    lists B

While a call is settled, no other process can make one, so one call serves all lists. Without
requests for the list, nothing is sent. A lost message is replaced after the next call.
"""

from asyncio import Task, get_running_loop, sleep
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from json import dumps, loads
from math import inf
from secrets import token_bytes, token_hex
from typing import Any, Final, NamedTuple, final

from purgatory import RelayUnavailable
from purgatory.relay._client import StoreClient
from purgatory.relay._messages import Delivery

CALL: Final = "\0workers"
"""Key of a call to all processes, and the prefix of the keys of their rows."""

CALL_INTERVAL: Final = 3.0
"""Seconds between two calls."""

MEMBER_TTL: Final = 10.0
"""Seconds without a row after which a process is no longer listed: three calls."""

READ_DELAY: Final = 0.05
"""Seconds for which the keys of rows gather before one read fetches them all."""

MAX_ROW_BYTES: Final = 4_000
"""Size limit of a row, in bytes."""

MAX_ROWS: Final = 100
"""Limit of rows in a read. Further ones are read after the next call."""

About = Callable[[], Mapping[str, Any]]


@final
class Worker(NamedTuple):
    """Another process of the same relay, as it announced itself. Do not trust it: any user of the
    store can announce itself."""

    id: str
    """Random id, created when the process opened its relay."""
    about: Mapping[str, Any]
    heard_at: float
    """Loop time at which its last row was received."""


@final
class Membership:
    """The other processes, as known here.

    Args:
        client: a client of an open store.
        about: returns the function that returns this process's details; None if the process is not
            to be listed.
        start: starts a task with a name.
    """

    def __init__(
        self,
        client: StoreClient,
        about: Callable[[], About | None],
        start: Callable[[Coroutine[Any, Any, None], str], "Task[None]"],
    ) -> None:
        self._client, self._about, self._start = client, about, start
        self._time = get_running_loop().time
        self._id = token_hex(8)
        self._rows_made = 0
        self._others: dict[str, Worker] = {}
        self._called_at = self._listed_at = self._answered_at = -inf
        self._unread: dict[str, None] = {}
        """Keys of rows to read, in order."""

    def others(self) -> list[Worker]:
        """The other processes, in the order of their first rows. Also calls all processes, unless
        this was done in the last seconds."""
        now = self._listed_at = self._time()
        if now >= self._called_at + CALL_INTERVAL and hasattr(self._client.store, "settle"):
            self._called_at = now
            self._start(self._settle(CALL, b""), "announcing")
        self._others = {
            id_: each for id_, each in self._others.items() if now < each.heard_at + MEMBER_TTL
        }
        return list(self._others.values())

    def on_settled(self, keys: Sequence[str]) -> None:
        """Handles a message that names these keys."""
        now = self._time()
        for key in keys:
            if key == CALL and now >= self._answered_at + CALL_INTERVAL / 2.0:
                self._answered_at = now
                self._answer()
            elif key.startswith(f"{CALL}/") and now < self._listed_at + MEMBER_TTL:
                if not self._unread:
                    self._start(self._read(), "reading workers")
                self._unread[key] = None

    def _answer(self) -> None:
        about = self._about()
        if about is None:
            return
        try:
            row = dumps(dict(about()), separators=(",", ":")).encode()
            if len(row) > MAX_ROW_BYTES:
                raise ValueError(f"expected at most {MAX_ROW_BYTES} bytes of JSON, got {len(row)}")
        except Exception as error:
            message = f"{self._client.store.address}: cannot announce this process to the others"
            get_running_loop().call_exception_handler({"message": message, "exception": error})
        else:
            self._rows_made += 1
            key = f"{CALL}/{self._id}/{self._rows_made}"
            self._start(self._settle(key, row), "announcing")

    async def _settle(self, key: str, value: bytes) -> None:
        with suppress(Exception):  # the next call follows soon
            delivery = Delivery(key, value, CALL_INTERVAL, token_bytes(16))
            await self._client.settle("announce", delivery)

    async def _read(self) -> None:
        await sleep(READ_DELAY)
        keys = list(islice(self._unread, MAX_ROWS))
        self._unread.clear()
        with suppress(RelayUnavailable, ValueError):
            for key, row in (await self._client.settled(keys)).items():
                id_, about = key.split("/")[1], loads(row)
                if id_ != self._id and isinstance(about, dict):
                    self._others[id_] = Worker(id_, about, self._time())
