"""Kafka's watch lists, in which completed requests stay until the key is checked or all lists are purged."""

from collections.abc import Hashable, Sequence

from benchmarks.baselines.implementations.interface import Request


class LingeringWatchLists:
    """The requests that watch each key, and those that did."""

    def __init__(self) -> None:
        self.entries = 0
        """How many entries the lists have, with those of completed requests."""
        self._by_key: dict[Hashable, list[Request]] = {}

    def add(self, request: Request, keys: Sequence[Hashable]) -> None:
        """Lets `request` watch `keys`."""
        by_key = self._by_key
        for key in keys:
            waiting = by_key.get(key)
            if waiting is None:
                by_key[key] = [request]
            else:
                waiting.append(request)
        self.entries += len(keys)

    def check(self, key: Hashable) -> int:
        """Tries all requests that watch `key`, drops those that have ended, and returns how many completed."""
        waiting = self._by_key.get(key, [])
        completed = sum([not request.done and request.try_complete() for request in waiting])
        self._keep(key, waiting)
        return completed

    def purge(self) -> None:
        """Drops all requests that have ended. Cost: all entries."""
        for key, waiting in list(self._by_key.items()):
            self._keep(key, waiting)

    def _keep(self, key: Hashable, waiting: list[Request]) -> None:
        kept = [request for request in waiting if not request.done]
        self.entries -= len(waiting) - len(kept)
        if kept:
            self._by_key[key] = kept
        else:
            self._by_key.pop(key, None)
