"""Who else is there: processes that are to be known call each other by name, through the channel that news take.

    A   calls      who is there? I am, and this is to be known of me      when somebody asks it who is there
    B   answers    I am, and this is to be known of me                    at once
    A   calls      ...                                                    3 s later, if somebody still asks, or B does
    B   is gone                                                           10 s later it is forgotten

Everyone hears calls and answers alike, so one call serves all who ask. Nothing is kept in the store, so nothing is left there
by who was killed; and while nobody asks, nothing is sent. What is lost on the way comes with the next call.

Knows no network, no loop and no clock.
"""

from collections.abc import Callable, Mapping
from math import inf
from secrets import token_hex
from typing import Any, Final, NamedTuple, final

from purgatory.relay._messages import Card

EVERY: Final = 3.0
"""Seconds between two calls."""

FORGOTTEN: Final = 10.0
"""Seconds after which who has not answered is taken to be gone: three calls."""

PAUSE: Final = 0.5
"""Seconds after an answer within which no other is given: those who call at once hear the first, and a stranger cannot have all
workers shout."""

MOST: Final = 256
"""How many others are remembered."""

About = Callable[[], Mapping[str, Any]]


@final
class Worker(NamedTuple):
    """Another process of the same relay, as it has introduced itself. What it says is to be taken for what a stranger says."""

    id: str
    """Made when its relay was opened."""
    about: Mapping[str, Any]
    heard_at: float
    """The loop's time when it was heard of last."""


@final
class Roll:
    """What is known of the others, and what they are to know."""

    def __init__(self) -> None:
        self.id = ""
        self.about: About | None = None
        """What the others are told; None if this process is not to be known."""
        self._others: dict[str, Worker] = {}
        self._called_at = -inf
        """When everyone was called last, by whomever, ..."""
        self._answered_at = -inf
        """... and when this process has answered last."""

    def begin(self) -> None:
        """This process is one of its own from now on, even if several were forked from one that had made the relay."""
        self.id = token_hex(8)

    def is_due(self, now: float) -> bool:
        """Whether everyone is to be called, because somebody asks and nobody has done so of late; then that counts as done."""
        if now < self._called_at + EVERY:
            return False
        self._called_at = now
        return True

    def card(self, calls: bool) -> Card:
        """What to tell everyone. Raises what `about` raises."""
        return Card(self.id, calls, None if self.about is None else dict(self.about()))

    def heard(self, card: Card, now: float) -> bool:
        """A card has come, which may be one's own; whether it is to be answered."""
        if card.id == self.id:
            return False
        if card.about is not None and (card.id in self._others or len(self.others(now)) < MOST):
            self._others[card.id] = Worker(card.id, card.about, now)
        if not card.calls:
            return False
        self._called_at = now
        if self.about is None or now < self._answered_at + PAUSE:
            return False
        self._answered_at = now
        return True

    def others(self, now: float) -> list[Worker]:
        """Those who are there, in the order in which they were heard of first."""
        self._others = {id_: each for id_, each in self._others.items() if now < each.heard_at + FORGOTTEN}
        return list(self._others.values())
