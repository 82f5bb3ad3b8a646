"""Which other processes there are. Those that want to be listed announce themselves through the channel of the store.

    A announces itself and asks the others to do so    when somebody there wants the list
    B announces itself                                 at once
    A announces itself and asks again                  3 s later, if somebody there or in B still wants the list
    B has been killed                                  10 s later it is no longer listed

Everyone receives every announcement, so one request serves all who want the list. The store keeps nothing, so a process that
was killed leaves nothing behind; and while nobody wants the list, nothing is sent. What is lost comes with the next request.

Knows no network, no loop and no clock.
"""

from collections.abc import Callable, Mapping
from math import inf
from secrets import token_hex
from typing import Any, Final, NamedTuple, final

from purgatory.relay._messages import Announcement

ANNOUNCE_INTERVAL: Final = 3.0
"""Seconds between two requests to all processes to announce themselves."""

MEMBER_TTL: Final = 10.0
"""Seconds after which a process that has not announced itself is no longer listed: three requests."""

MIN_REPLY_INTERVAL: Final = 0.5
"""Rate limit, in seconds: concurrent requests share one reply, and nobody who can write to the store can trigger a storm."""

MAX_MEMBERS: Final = 256
"""How many other processes are listed."""

About = Callable[[], Mapping[str, Any]]


@final
class Worker(NamedTuple):
    """Another process of the same relay, as it has announced itself. Do not trust it: anyone who can write to the store can
    send an announcement."""

    id: str
    """Made when its relay was opened."""
    about: Mapping[str, Any]
    heard_at: float
    """The loop's time when its last announcement was received."""


@final
class Membership:
    """What is known of the other processes, and what this one tells them."""

    def __init__(self) -> None:
        self.id = ""
        self.about: About | None = None
        """What this process tells the others; None if it does not want to be listed."""
        self._others: dict[str, Worker] = {}
        self._requested_at = -inf
        """When any process has last asked all to announce themselves."""
        self._replied_at = -inf
        """When this process has last announced itself because another one had asked."""

    def begin(self) -> None:
        """Makes a new id. Not in the constructor: several processes may be forked from the one that has made the relay."""
        self.id = token_hex(8)

    def is_due(self, now: float) -> bool:
        """Whether to ask all processes to announce themselves, because nobody has done so lately. If so, it counts as done."""
        if now < self._requested_at + ANNOUNCE_INTERVAL:
            return False
        self._requested_at = now
        return True

    def announcement(self, calls: bool) -> Announcement:
        """The announcement of this process. Raises what `about` raises."""
        return Announcement(self.id, calls, None if self.about is None else dict(self.about()))

    def on_announcement(self, announcement: Announcement, now: float) -> bool:
        """An announcement was received, perhaps one's own; whether to reply with the one of this process."""
        id_, calls, about = announcement
        if id_ == self.id:
            return False
        if about is not None and (id_ in self._others or len(self.others(now)) < MAX_MEMBERS):
            self._others[id_] = Worker(id_, about, now)
        if not calls:
            return False
        self._requested_at = now
        if self.about is None or now < self._replied_at + MIN_REPLY_INTERVAL:
            return False
        self._replied_at = now
        return True

    def others(self, now: float) -> list[Worker]:
        """The other processes, in the order of their first announcements."""
        self._others = {id_: worker for id_, worker in self._others.items() if now < worker.heard_at + MEMBER_TTL}
        return list(self._others.values())
