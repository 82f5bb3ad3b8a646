"""A store in a folder whose calls fail as a test tells."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from purgatory import RelayUnavailable
from purgatory.relay._store import NotWritten, Refused, open_store

FOREVER = 120.0  # seconds; longer than any test


class FailingStore:
    """Calls of a method fail in turn: `before` or after (`after`) they are made, or they are
    `refused`, take for ever (`hangs`), or are `slow` to end.

    Attributes:
        failures: of the next calls, by method; "" for none.
        without: methods that the store does not have.
        calls, last: how often a method that may fail was called, and the last arguments.
    """

    def __init__(self, folder: Path, without: str = "", **failures: list[str]) -> None:
        self._store: Any = open_store(f"file://{folder}", "purgatory")
        self.without, self.failures = without, failures
        self.calls: Counter[str] = Counter()
        self.last: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name == self.without:
            raise AttributeError(name)
        method = getattr(self._store, name)
        return (
            (lambda *words: self._call(name, method, *words)) if name in self.failures else method
        )

    async def _call(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        self.calls[name] += 1
        self.last[name] = arguments
        failure = self.failures[name].pop(0) if self.failures[name] else ""
        if failure == "before":
            raise NotWritten("nothing was written")
        if failure == "refused":
            raise Refused("no permission")
        if failure == "hangs":
            await asyncio.sleep(FOREVER)
        try:
            answer = await method(*arguments)
        finally:
            if failure == "slow":
                await asyncio.sleep(0.01)
        if failure == "after":
            raise RelayUnavailable("the answer was lost")
        return answer
