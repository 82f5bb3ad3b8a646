"""The protocol: what a process knows of the versions in a store. Events in, what to read next out; no network, loop or clock.

Change messages arrive over a channel that may lose, repeat, delay and reorder them. That does no harm: versions only rise
within an epoch and the store can be read again, so what is known of a key is the maximum of what was received. Messages only
save time.

    subscribe, and wait for the confirmation    what is written between a read and a later subscription would be missed
    read what has changed since position 41     also after each further confirmation: messages before it may be lost
    message: after 41, up to 43, orders/7 is 5  in order, so everything up to position 43 is known
    message: after 44, up to 45, orders/9 is 2  44 is missing, so read since 43, unless it still comes within a moment
    read since 43: up to 45, orders/7 is 6      a version without a message. It counts as healed if its message has not come
                                                when a probe, sent through the same channel afterwards, has come back
    read since 45: up to 40                     the store has gone backwards: end its epoch, so that nobody waits until the
                                                numbers that were lost have been given out again
    read since 45: of another epoch             every wait of the old epoch ends, with the current version
    nobody waits any more: leave                the changes are not sent to this process, and a resync reads no more than the
                                                epoch and the position
    wait, joined, read orders/7 and position    what was read before the subscription to the changes was confirmed is read
                                                again, at position 90: from here on it follows what has changed

A wait names the version that its caller has seen. A read that began after the wait must find this version or a higher one. If
it finds a lower one, `seen` is from an earlier epoch, and the wait ends as after a change of epoch.

Sources: Centrifugo's recovery by offset and epoch; etcd's revisions; h11's form of a protocol without I/O.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple, final

from purgatory.relay._messages import ChangeMessage, Hint, ReadResult

MAX_KEYS_PER_READ: Final = 300

MAX_OUT_OF_ORDER: Final = 1_000
"""How many messages beyond a gap are remembered. With more, what is missing is read at once."""


class ReadRequest(NamedTuple):
    """What to read: the versions of `keys`, and, if `since` is not None, what has changed after that position."""

    keys: tuple[str, ...]
    since: int | None
    known: dict[str, int]
    """The versions of `keys` that were known when the read began. A lower one shows that the store has lost something."""
    latest: int
    """The latest known position when the read began, for the same purpose."""
    subscriptions: int
    """How many subscriptions had been confirmed when the read began."""
    hinted: frozenset[str] = frozenset()
    """Those of `keys` that are read because of a hint."""
    is_resync: bool = False
    """Whether it compares what is known with the store: by what has changed, or while it follows nothing by the position."""
    begins_to_follow: bool = False
    """Whether it began after the changes were joined, so that messages go on where its result ends."""


@final
class FollowedKey:
    """A key for which somebody waits."""

    __slots__ = ("epochs", "max_seen", "version", "waiters")

    def __init__(self, epochs: int) -> None:
        self.waiters = 0
        self.version: int | None = None
        """The highest known one in the epoch that it is from; None until it was read."""
        self.max_seen = 0
        """The highest `seen` of all waiters, also of some that are gone."""
        self.epochs = epochs
        """How many epochs there had been when its waits began, or its version was read. If there have been more since, its
        waits end as soon as the version in this one is known; nothing goes through all keys when an epoch begins."""


@final
class Follower:
    """Follows a store: keeps the versions of keys for which somebody waits, and says what to read next.

    Args:
        on_advance: called with a followed key and its new version, which is higher than any before in this epoch.
        on_epoch_change: called with a followed key and its version, when some who wait for it have seen a version of another
            epoch. Of those who have seen one of this epoch these go on waiting who have seen this version, or a higher one if
            the third argument is false: then it was perhaps read before they began to wait, and has to be read again.
        on_change: called with each key that has changed, followed or not.
    """

    def __init__(
        self,
        on_advance: Callable[[str, int], None],
        on_epoch_change: Callable[[str, int, bool], None],
        on_change: Callable[[str], None],
    ) -> None:
        self._on_advance, self._on_epoch_change, self._on_change = on_advance, on_epoch_change, on_change
        self.epoch: str | None = None
        self.position = 0
        """Everything that was written up to here is known, of each followed key that is not still to be read."""
        self.latest = 0
        """The latest position that was received in this epoch."""
        self.followed: dict[str, FollowedKey] = {}
        self.is_subscribed = False
        self.is_current = False
        """Subscribed, and everything that was written before the subscription is known."""
        self.reports_all_keys = False
        """Whether to call `on_change` with every key of a new epoch, and not only with those that are followed."""
        self.is_joined = True
        """Whether the store sends changes to this process."""
        self._follows_changes = True
        """Whether `position` means anything. Between `leave` and the first read after `on_joined` it does not."""
        self.waits = 0
        """How many waits have begun."""
        self.epoch_to_end: str | None = None
        """The epoch that the store has to end, because it has gone backwards."""
        self.epochs = self.resyncs = self.healed = self.received = 0
        self.subscriptions = 0
        """How many subscriptions were confirmed."""
        self._probes = 0
        self._wants_changes = True
        """Whether to read what has changed since `position`."""
        self._keys_to_read: dict[str, bool] = {}
        """In order; whether a hint has named them."""
        self._out_of_order: dict[int, int] = {}
        """Messages beyond a gap: the position that they come after -> their own."""
        self._unconfirmed: dict[str, tuple[int, int]] = {}
        """Keys whose version was found by a read -> that version, and the probe that decides whether its message was lost."""
        self._in_flight: ReadRequest | None = None

    # -- waiters

    def add_waiter(self, key: str, seen: int) -> None:
        """Somebody who has seen version `seen` begins to wait for `key`."""
        followed = self.followed.get(key)
        if followed is None:
            followed = self.followed[key] = FollowedKey(self.epochs)
        self.waits += 1
        followed.waiters += 1
        version = self._version(followed)
        if version is None or seen > version:
            self._keys_to_read.setdefault(key, False)
        followed.max_seen = max(followed.max_seen, seen)

    def remove_waiter(self, key: str) -> bool:
        """Somebody no longer waits for `key`; whether nobody does now."""
        followed = self.followed[key]
        followed.waiters -= 1
        if followed.waiters:
            return False
        del self.followed[key]
        self._keys_to_read.pop(key, None)
        return True

    def _version(self, followed: FollowedKey) -> int | None:
        """The highest known version in this epoch."""
        return followed.version if followed.epochs == self.epochs else None

    # -- interest

    @property
    def has_interest(self) -> bool:
        """Whether changes matter to anybody here."""
        return self.reports_all_keys or bool(self.followed)

    def report_all_keys(self) -> None:
        """Has every change reported from now on, and every key of a new epoch."""
        self.reports_all_keys = self._follows_changes = True  # from the last position, which is before any later change

    def leave(self) -> None:
        """Nobody has an interest, so that the store need not send changes; `on_joined` has to follow when somebody has."""
        self.is_joined = self._follows_changes = False
        self._out_of_order.clear()
        self._unconfirmed.clear()

    def on_joined(self) -> None:
        """The store sends changes again, which was confirmed."""
        self.is_joined = self._wants_changes = True
        if not self._follows_changes:
            self._read_followed()

    # -- the channel

    def on_subscribed(self) -> None:
        """A subscription was confirmed: the first one, or one that was made anew."""
        self.subscriptions += 1
        self.is_subscribed, self.is_current = True, False
        self._wants_changes = True
        if self.subscriptions > 1:
            self._read_followed()  # the store may have crashed and lost its last writes
        self._count_lost(self._probes + 1)  # what has not come through the previous subscription never will

    def on_disconnected(self) -> None:
        """The subscription has ended."""
        self.is_subscribed = self.is_current = False

    def on_message(self, message: ChangeMessage) -> None:
        """A change message was received."""
        self.received += len(message.versions)
        if self._unconfirmed:
            self._confirm(message.versions)
        self._apply_message(message)

    def on_hint(self, hint: Hint) -> None:
        """A hint was received. Anyone may have sent it, so it only has something read."""
        self.received += len(hint.keys)
        if self.reports_all_keys or not hint.keys:
            self._wants_changes = True
        for key in hint.keys:
            if key in self.followed:
                self._keys_to_read[key] = True
                self._unconfirmed.pop(key, None)

    def on_written(self, message: ChangeMessage, latest: int) -> None:
        """A write has returned `message`. `latest` is what the follower's was when the write began."""
        if message.epoch == self.epoch and message.after < message.position <= latest:
            self.epoch_to_end, self._wants_changes = message.epoch, True  # a write comes after all that was before it
        self._apply_message(message)

    def _apply_message(self, message: ChangeMessage) -> None:
        epoch, after, position, versions = message
        if epoch != self.epoch:
            self._wants_changes = True  # only the store knows which of the two is the later one
            return
        self.latest = max(self.latest, position)
        if after >= 0 and self._follows_changes:
            if position <= self.position:
                return
            if after <= self.position:
                self._advance_position(position)
            else:
                self._out_of_order[after] = position
                self._wants_changes = self._wants_changes or len(self._out_of_order) > MAX_OUT_OF_ORDER
        for key, version in versions.items():
            followed = self.followed.get(key)
            if followed is not None and ((known := self._version(followed)) is None or version > known):
                self._advance_key(key, followed, version, is_latest=False)
            self._on_change(key)

    @property
    def has_gap(self) -> bool:
        """Whether a message was received before an earlier one."""
        return bool(self._out_of_order)

    # -- reads

    def resync(self) -> None:
        """Asks for a read of what has changed, as messages may have been lost."""
        self._wants_changes = True
        if not self._follows_changes:
            self._read_followed()

    def _read_followed(self) -> None:
        """Has all keys read for which somebody waits."""
        self._keys_to_read = dict.fromkeys(self.followed, False)

    @property
    def needs_changes(self) -> bool:
        """Whether what has changed is to be read, or there is more of it."""
        return self._wants_changes

    @property
    def needs_read(self) -> bool:
        """Whether there is something to read, and no read in flight."""
        return self._in_flight is None and (self._wants_changes or bool(self._keys_to_read))

    def begin_read(self) -> ReadRequest:
        """What to read. `on_read` or `on_read_failed` has to follow before the next one."""
        keys = tuple(islice(self._keys_to_read, MAX_KEYS_PER_READ))
        hinted = frozenset([key for key in keys if self._keys_to_read.pop(key)])
        is_resync = self._wants_changes and self.epoch is not None
        since = self.position if is_resync and self._follows_changes else None
        begins = self.is_joined and not self._follows_changes
        self._wants_changes = False
        known = {key: version for key in keys if (version := self._version(self.followed[key])) is not None}
        self._in_flight = ReadRequest(keys, since, known, self.latest, self.subscriptions, hinted, is_resync, begins)
        return self._in_flight

    def on_read_failed(self, request: ReadRequest) -> None:
        """The read has failed."""
        self._in_flight = None
        self._wants_changes = self._wants_changes or request.is_resync or self.epoch is None
        self._keys_to_read.update((key, key in request.hinted) for key in request.keys if key in self.followed)

    def on_read(self, request: ReadRequest, result: ReadResult) -> None:
        """The read has returned `result`."""
        self._in_flight = None
        if result.epoch != self.epoch:
            self._begin_epoch(request, result)
        elif self._went_backwards(request, result):
            self.epoch_to_end = self.epoch
            self.on_read_failed(request)
            return
        elif request.is_resync:
            self.resyncs += 1
            self._wants_changes = self._wants_changes or result.has_more
            if request.since is None and self._follows_changes:
                self._wants_changes = True  # since when `report_all_keys` was called meanwhile
            elif result.position >= self.position:
                self._advance_position(result.position)
            if result.is_incomplete:
                self._read_followed()
            self._out_of_order = {after: at for after, at in self._out_of_order.items() if at > self.position}
        if request.begins_to_follow and self.is_joined:
            self._follows_changes = True
        self.latest = max(self.latest, result.position)
        self._apply_result(request, result)
        if request.subscriptions == self.subscriptions and self.is_subscribed and not self._wants_changes:
            self.is_current = True

    @staticmethod
    def _went_backwards(request: ReadRequest, result: ReadResult) -> bool:
        """Whether a position or a version is lower than before. A version may be, though no position is: when others have
        written as much since as the store had lost."""
        if max(result.position, result.latest) < request.latest:
            return True
        return any(result.versions.get(key, version) < version for key, version in request.known.items())

    def _begin_epoch(self, request: ReadRequest, result: ReadResult) -> None:
        self.epochs += 1
        self.epoch, self.position, self.epoch_to_end = result.epoch, result.position, None
        self.latest = result.position
        if self.reports_all_keys and self.epochs > 1:
            self.position, self._wants_changes = 0, True
        self._out_of_order.clear()
        self._unconfirmed.clear()
        keys = dict.fromkeys(self.followed, False)
        for key in request.keys:
            if key not in self._keys_to_read:
                keys.pop(key, None)
        self._keys_to_read = keys

    def _apply_result(self, request: ReadRequest, result: ReadResult) -> None:
        requested = set(request.keys)
        for key, version in result.versions.items():
            followed = self.followed.get(key)
            if followed is not None:
                known = self._version(followed)
                if known is None or version > known:
                    self._advance_key(key, followed, version, key in requested and key not in self._keys_to_read)
                    if known is not None and request.since is not None and key not in request.hinted:
                        self._unconfirmed[key] = (version, self._probes + 1)
                if key in requested:
                    self._release_ahead_waiters(key, followed)
            if request.since is not None:
                self._on_change(key)

    def _release_ahead_waiters(self, key: str, followed: FollowedKey) -> None:
        """Releases waiters whose `seen` exceeds the store's version, except those that came after the read began: for them the
        key is to be read again."""
        version = self._version(followed)
        if version is not None and followed.max_seen > version and key not in self._keys_to_read:
            followed.max_seen = version
            self._on_epoch_change(key, version, True)

    def _advance_key(self, key: str, followed: FollowedKey, version: int, is_latest: bool) -> None:
        """The version has risen, or is that of a new epoch. `is_latest`: it was read after all waits had begun."""
        is_from_old_epoch = 0 < followed.epochs < self.epochs
        followed.version, followed.epochs = version, self.epochs
        if is_from_old_epoch:
            followed.max_seen = 0
            self._on_epoch_change(key, version, is_latest)
        else:
            self._on_advance(key, version)

    def _advance_position(self, position: int) -> None:
        """Everything up to `position` is known, and so are the messages that directly follow it."""
        out_of_order = self._out_of_order
        while out_of_order and position in out_of_order:
            position = out_of_order.pop(position)
        self.position = position

    # -- messages that were lost

    def begin_probe(self) -> int:
        """The number of a probe to send through the channel; `on_probe` has to be called when it comes back."""
        self._probes += 1
        return self._probes

    def on_probe(self, probe: int) -> bool:
        """A probe has come back, and with it all messages that were sent before; whether it is the latest probe."""
        self._count_lost(probe)
        return probe == self._probes

    def _count_lost(self, probe: int) -> None:
        lost = [key for key, (_, number) in self._unconfirmed.items() if number <= probe]
        for key in lost:
            del self._unconfirmed[key]
        self.healed += len(lost)

    def _confirm(self, versions: Mapping[str, int]) -> None:
        """The messages of these versions were only late."""
        for key, version in versions.items():
            unconfirmed = self._unconfirmed.get(key)
            if unconfirmed is not None and version >= unconfirmed[0]:
                del self._unconfirmed[key]
