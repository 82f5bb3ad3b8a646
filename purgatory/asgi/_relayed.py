"""The versions of a relay, for `Poll.reach`."""

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from purgatory.relay import Relay


@final
class RelayedThresholds:
    """The two methods of a `ThresholdPurgatory` that a poll calls."""

    __slots__ = ("_relay",)

    def __init__(self, relay: "Relay") -> None:
        self._relay = relay

    async def wait(self, key: str, threshold: int, timeout: float | None = None) -> int:
        """As `Relay.wait`, which may return a lower version if the epoch has changed."""
        return await self._relay.wait(key, threshold - 1, timeout)

    def value(self, _key: str) -> int | None:
        """Unknown: it is in the store, which may be unreachable."""
        return None
