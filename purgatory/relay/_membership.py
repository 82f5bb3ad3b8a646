"""Lists the other processes. A process that wants to be listed announces itself through the store's
channel, or, if strangers can use the channel, through the store itself.

    A announces itself and calls all others to do so   when the list is requested in A
    B announces itself                                 at once
    A announces itself and calls again                 3 s later, if the list is still requested in
                                                       A or B
    B is killed                                        10 s later it is no longer listed

Each process receives every announcement, so one call serves all lists. A channel keeps no
announcements. A store keeps at most the last one of each process, and the next announcement of any
process removes those older than some seconds. Without requests for the list, nothing is sent. A
lost announcement is replaced after the next call.

This module uses no network, loop or clock.
"""

from collections.abc import Callable, Mapping
from math import inf
from secrets import token_hex
from typing import Any, Final, NamedTuple, final

from purgatory.relay._messages import Announcement

ANNOUNCE_INTERVAL: Final = 3.0
"""Seconds between two calls to all processes to announce themselves."""

MEMBER_TTL: Final = 10.0
"""Seconds without an announcement after which a process is no longer listed: three calls."""

MIN_REPLY_INTERVAL: Final = 0.5
"""Minimum interval between replies, in seconds: concurrent calls share one reply, and forged calls
cannot trigger a storm."""

MAX_MEMBERS: Final = 256
"""Limit of listed processes."""

About = Callable[[], Mapping[str, Any]]


@final
class Worker(NamedTuple):
    """Another process of the same relay, as it announced itself. Do not trust it: any user of the
    store can send announcements."""

    id: str
    """Random id, created when the process opened its relay."""
    about: Mapping[str, Any]
    heard_at: float
    """Loop time at which its last announcement was received."""


@final
class Membership:
    """The other processes, as known here, and this process's own announcement."""

    def __init__(self) -> None:
        self.id = ""
        self.about: About | None = None
        """Returns the details that this process publishes; None if it does not want to be
        listed."""
        self._others: dict[str, Worker] = {}
        self._requested_at = -inf
        """Time of the last call by any process."""
        self._listed_at = -inf
        """Time of the last request for the list in this process."""
        self._replied_at = -inf
        """Time of the last announcement in reply to a call."""

    def begin(self) -> None:
        """Creates a new id. Not in the constructor, because the process may fork after constructing
        the relay."""
        self.id = token_hex(8)

    def is_due(self, now: float) -> bool:
        """Whether a call to all processes is due. If so, it counts as sent."""
        self._listed_at = now
        if now < self._requested_at + ANNOUNCE_INTERVAL:
            return False
        self._requested_at = now
        return True

    def is_interested(self, now: float) -> bool:
        """Whether this process needs announcements: it wants to be listed, or the list was
        requested."""
        return self.about is not None or now < self._listed_at + MEMBER_TTL

    def announcement(self, calls: bool) -> Announcement:
        """The announcement of this process. Propagates errors of `about`."""
        return Announcement(self.id, calls, None if self.about is None else dict(self.about()))

    def on_announcement(self, announcement: Announcement, now: float) -> bool:
        """Handles a received announcement, perhaps this process's own. Returns whether to reply."""
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
        self._others = {
            id_: worker
            for id_, worker in self._others.items()
            if now < worker.heard_at + MEMBER_TTL
        }
        return list(self._others.values())
