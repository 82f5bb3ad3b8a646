"""The protocol: the versions in a store, as one process knows them. It takes events and decides
what to read next, without a network, a loop or a clock.

Change messages arrive over a channel that may lose, repeat, delay and reorder them. This is
harmless: versions only rise within an epoch, the store can be read again, and the known version of
a key is the maximum received. Messages only save time.

One rule decides whether the store has lost data. A version below the known one, in a message or
among the changes of a read, proves nothing: it may be late. It causes a read of the key, which
decides: if the answer is below the version known at the start of the read, the store has gone
backwards, and its epoch ends. The same holds for the position of each answer, to a read or a write.

    subscribe, and wait for the confirmation    writes between a read and a later subscription would
                                                be missed
    read the changes since position 41          also after each further confirmation: earlier
                                                messages may be lost
    message: after 41, up to 43, orders/7 is 5  in order, so everything up to position 43 is known
    message: after 44, up to 45, orders/9 is 2  44 is missing: read since 43, unless it arrives
                                                within a moment
    read since 43: up to 45, orders/7 is 6      a version without a message. It counts as healed if
                                                its message has not arrived when a probe, sent
                                                later through the same channel, has returned
    message: after 21, up to 22, orders/7 is 3  lower than 6: late, or the store has lost 6; read
                                                orders/7
    read orders/7: 3                            lost: end the epoch, so that no wait blocks on a
                                                reused number
    read since 45: up to 40                     the same, by the position
    read since 45: of another epoch             all waits of the old epoch end, with the current
                                                version

Deleting a row by hand publishes nothing, so each resync also reads some followed keys, in turn.

A key is followed for a while after its last waiter has left: most callers wait again at once, with
the version that they got, and need no read then. A hint to such a key drops it, since no wait needs
the read.

A wait names the version its caller has seen. A read that began after the wait must find that
version or a higher one. A lower version shows that `seen` is from another epoch; only this wait
ends.

Sources: Centrifugo's recovery by offset and epoch; etcd's revisions; h11, a protocol without I/O.
"""

from collections.abc import Callable, Mapping
from itertools import islice, takewhile
from typing import Final, NamedTuple, final

from purgatory.relay._messages import ChangeMessage, Hint, ReadResult

MAX_KEYS_PER_READ: Final = 300

MAX_OUT_OF_ORDER: Final = 1_000
"""Limit of messages remembered after a gap. Above it, the missing changes are read at once."""


MAX_IDLE_KEYS: Final = 10_000
"""Limit of followed keys without waiters. Above it, the one that is longest without is dropped."""


class ReadRequest(NamedTuple):
    """A read: the versions of `keys` and, unless `since` is None, all changes after that
    position."""

    keys: tuple[str, ...]
    since: int | None
    known: dict[str, int]
    """Known versions of `keys` when the read began. A lower answer shows that the store has lost
    data."""
    latest: int
    """Latest known position when the read began, for the same check."""
    subscriptions: int
    """Number of confirmed subscriptions when the read began."""
    hinted: frozenset[str] = frozenset()
    """The subset of `keys` read because of a hint."""
    is_resync: bool = False
    """Whether it reads the changes because messages may have been lost."""


@final
class FollowedKey:
    """A key that has waiters, or had some lately."""

    __slots__ = ("epochs", "version", "waiters")

    def __init__(self, epochs: int) -> None:
        self.waiters = 0
        self.version: int | None = None
        """Highest known version in its epoch; None before the first read."""
        self.epochs = epochs
        """Number of epochs when the first wait began, or when the version became known. If the
        follower has counted more since, the waits end once the version in the current epoch is
        known. So a new epoch needs no loop over all keys."""


@final
class Follower:
    """Follows a store: keeps the versions of the keys with waiters, and decides what to read.

    Args:
        on_advance: called with a followed key and its new version, the highest one in this epoch.
        on_epoch_change: called with a followed key and its version in a new epoch. Waits from an
        older epoch end; other waits restart if they have seen this version or a higher one.
        on_ahead: called with a followed key and the version that a read has found. All waits that
        have seen a higher version end, since theirs is from another epoch.
        on_change: called with each changed key, followed or not.
        on_dropped: called with each key that is no longer followed.
    """

    def __init__(
        self,
        on_advance: Callable[[str, int], object],
        on_epoch_change: Callable[[str, int], None],
        on_ahead: Callable[[str, int], None],
        on_change: Callable[[str], None],
        on_dropped: Callable[[str], None],
    ) -> None:
        self._on_advance, self._on_epoch_change = on_advance, on_epoch_change
        self._on_ahead, self._on_change, self._on_dropped = on_ahead, on_change, on_dropped
        self.epoch: str | None = None
        self.position = 0
        """All writes up to this position are known, for each followed key outside
        `_keys_to_read`."""
        self.latest = 0
        """Latest position received in this epoch."""
        self.followed: dict[str, FollowedKey] = {}
        self.idle: dict[str, int] = {}
        """Followed keys without waiters, in the order in which they lost them -> the value of
        `_age` then."""
        self._age = 0
        self.is_subscribed = False
        self.is_current = False
        """Whether it is subscribed, and knows all writes before the subscription."""
        self.reports_all_keys = False
        """Whether to call `on_change` with every key of a new epoch, not only with followed
        keys."""
        self.epoch_to_end: str | None = None
        """The epoch to end in the store, because the store has gone backwards."""
        self.epochs = self.resyncs = self.healed = self.received = 0
        self.subscriptions = 0
        """Number of confirmed subscriptions."""
        self._probes = 0
        self.wants_changes = True
        """Whether a read of the changes since `position` is due, or the last one left some of them
        unread."""
        self._is_resync = True
        """Whether to do so because messages may have been lost."""
        self._keys_to_read: dict[str, bool] = {}
        """Keys to read, in order -> whether a hint named the key."""
        self._out_of_order: dict[int, int] = {}
        """Messages after a gap: the position before each message -> its own position."""
        self._unconfirmed: dict[str, tuple[int, int]] = {}
        """Keys with a version that a read found -> the version, and the number of the probe that
        decides whether its message was lost."""
        self._in_flight: ReadRequest | None = None

    # -- waiters

    def add_waiter(self, key: str, seen: int) -> None:
        """Adds a waiter for a version of `key` above `seen`."""
        followed = self.followed.get(key)
        if followed is None:
            followed = self.followed[key] = FollowedKey(self.epochs)
        self.idle.pop(key, None)
        followed.waiters += 1
        version = self._version(followed)
        if version is None or seen > version:
            self._keys_to_read.setdefault(key, False)

    def remove_waiter(self, key: str) -> None:
        """Removes a waiter for `key`. The key stays followed until `drop_idle`, unless too many
        do."""
        followed = self.followed[key]
        followed.waiters -= 1
        if not followed.waiters:
            self.idle[key] = self._age
            if self._version(followed) is None:
                self._drop(key)  # no wait needs its read
            elif len(self.idle) > MAX_IDLE_KEYS:
                self._drop(next(iter(self.idle)))

    def drop_idle(self) -> None:
        """Drops the keys that have had no waiters since the last call."""
        for key in [*takewhile(lambda key: self.idle[key] < self._age, self.idle)]:
            self._drop(key)
        self._age += 1

    def _drop(self, key: str) -> None:
        del self.idle[key], self.followed[key]
        self._keys_to_read.pop(key, None)
        self._on_dropped(key)

    def _drop_all_idle(self) -> None:
        for key in tuple(self.idle):
            self._drop(key)

    def _version(self, followed: FollowedKey) -> int | None:
        """The highest known version in this epoch."""
        return followed.version if followed.epochs == self.epochs else None

    # -- the channel

    def on_subscribed(self) -> None:
        """Handles the confirmation of a subscription, the first or a renewed one."""
        self.subscriptions += 1
        self.is_subscribed, self.is_current = True, False
        self.resync()
        if self.subscriptions > 1:
            self._read_followed()  # the store may have crashed and lost its last writes
        # Messages still missing from the previous subscription will never arrive.
        self._count_lost(self._probes + 1)

    def on_disconnected(self) -> None:
        """Handles the end of the subscription."""
        self.is_subscribed = self.is_current = False

    def on_message(self, message: ChangeMessage) -> None:
        """Handles a received change message."""
        self.received += len(message.versions)
        if self._unconfirmed:
            self._confirm(message.versions)
        self._apply_message(message)

    def on_hint(self, hint: Hint) -> None:
        """Handles a received hint. Its sender is unknown, so it only causes reads."""
        self.received += len(hint.keys)
        if self.reports_all_keys or not hint.keys:
            self.wants_changes = True
        for key in hint.keys:
            if key in self.idle:
                self._drop(key)
            elif key in self.followed:
                self._keys_to_read[key] = True
                self._unconfirmed.pop(key, None)

    def on_written(self, message: ChangeMessage, latest: int) -> None:
        """Handles the result of a write. `latest` is the follower's value when the write began."""
        if message.epoch == self.epoch and message.after < message.position <= latest:
            self._end_epoch()
        self._apply_message(message)

    def _apply_message(self, message: ChangeMessage) -> None:
        epoch, after, position, versions = message
        if epoch != self.epoch:
            self.wants_changes = True  # only the store knows which epoch is later
            return
        self.latest = max(self.latest, position)
        is_new = True
        if after >= 0:
            is_new = position > self.position
            if is_new and after <= self.position:
                self._advance_position(position)
            elif is_new:
                self._out_of_order[after] = position
                self.wants_changes = (
                    self.wants_changes or len(self._out_of_order) > MAX_OUT_OF_ORDER
                )
        for key, version in versions.items():
            self._apply_version(key, version)
            if is_new:
                self._on_change(key)

    def _apply_version(self, key: str, version: int) -> bool:
        """Applies a received version of `key`. Returns whether it is new."""
        followed = self.followed.get(key)
        if followed is None:
            return False
        known = self._version(followed)
        if known is not None and version <= known:
            if version < known:  # late, or lost by the store: a read decides
                self._keys_to_read.setdefault(key, False)
            return False
        is_from_old_epoch = 0 < followed.epochs < self.epochs
        followed.version, followed.epochs = version, self.epochs
        if is_from_old_epoch:
            self._on_epoch_change(key, version)
        else:
            self._on_advance(key, version)
        return known is not None

    @property
    def has_gap(self) -> bool:
        """Whether a message arrived before an earlier one."""
        return bool(self._out_of_order)

    # -- reads

    def resync(self) -> None:
        """Requests a read of the changes, since messages may have been lost."""
        self.wants_changes = self._is_resync = True

    def recheck(self) -> None:
        """Requests a resync and a read of some followed keys, in turn, since a deleted row sends no
        message."""
        self.resync()
        for key in tuple(islice(self.followed, MAX_KEYS_PER_READ)):
            self.followed[key] = self.followed.pop(key)
            self._keys_to_read.setdefault(key, False)

    def _read_followed(self) -> None:
        """Requests a read of all followed keys."""
        self._drop_all_idle()
        self._keys_to_read = dict.fromkeys(self.followed, False)

    @property
    def is_reading_changes(self) -> bool:
        """Whether a read of the changes is due or in flight."""
        return self.wants_changes or self._in_flight is not None

    @property
    def needs_read(self) -> bool:
        """Whether a read is needed and none is in flight."""
        return self._in_flight is None and (self.wants_changes or bool(self._keys_to_read))

    def begin_read(self) -> ReadRequest:
        """Returns the next read. `on_read` or `on_read_failed` must follow before another call."""
        keys = tuple(islice(self._keys_to_read, MAX_KEYS_PER_READ))
        hinted = frozenset([key for key in keys if self._keys_to_read.pop(key)])
        since = self.position if self.wants_changes and self.epoch is not None else None
        is_resync = self.wants_changes and self._is_resync
        self.wants_changes = self._is_resync = False
        known = {
            key: version
            for key in keys
            if (version := self._version(self.followed[key])) is not None
        }
        self._in_flight = ReadRequest(
            keys, since, known, self.latest, self.subscriptions, hinted, is_resync
        )
        return self._in_flight

    def on_read_failed(self, request: ReadRequest) -> None:
        """Handles a failed read; it is requested again."""
        self._in_flight = None
        self.wants_changes = self.wants_changes or request.since is not None or self.epoch is None
        self._is_resync = self._is_resync or request.is_resync
        self._keys_to_read.update(
            (key, key in request.hinted) for key in request.keys if key in self.followed
        )

    def on_read(self, request: ReadRequest, result: ReadResult) -> None:
        """Handles the result of a read."""
        self._in_flight = None
        if result.epoch != self.epoch:
            self._begin_epoch(request, result)
        elif self._went_backwards(request, result):
            self._end_epoch()
            self.on_read_failed(request)
            return
        elif request.since is not None:
            self.resyncs += request.is_resync
            self.wants_changes = self.wants_changes or result.has_more
            if result.position >= self.position:
                self._advance_position(result.position)
            if result.is_incomplete:
                self._read_followed()
            self._out_of_order = {
                after: at for after, at in self._out_of_order.items() if at > self.position
            }
        self.latest = max(self.latest, result.position)
        self._apply_result(request, result)
        if (
            request.subscriptions == self.subscriptions
            and self.is_subscribed
            and not self.wants_changes
        ):
            self.is_current = True

    @staticmethod
    def _went_backwards(request: ReadRequest, result: ReadResult) -> bool:
        """Whether an answer is behind the state known when the read began. The positions alone do
        not show it if later writes made up for the number of lost ones; then a version does."""
        if max(result.position, result.latest) < request.latest:
            return True
        return any(
            result.versions.get(key, version) < version for key, version in request.known.items()
        )

    def _end_epoch(self) -> None:
        """Has the next read end the store's epoch first, because the store has gone backwards."""
        self.epoch_to_end, self.wants_changes = self.epoch, True

    def _begin_epoch(self, request: ReadRequest, result: ReadResult) -> None:
        self.epochs += 1
        self.epoch, self.position, self.epoch_to_end = result.epoch, result.position, None
        self.latest = result.position
        if self.reports_all_keys and self.epochs > 1:
            self.position, self.wants_changes = 0, True
        self._out_of_order.clear()
        self._unconfirmed.clear()
        self._drop_all_idle()
        keys = dict.fromkeys(self.followed, False)
        for key in request.keys:
            if key not in self._keys_to_read:
                keys.pop(key, None)
        self._keys_to_read = keys

    def _apply_result(self, request: ReadRequest, result: ReadResult) -> None:
        requested = set(request.keys)
        for key, version in result.versions.items():
            is_decided = key in requested and key not in self._keys_to_read
            is_new = self._apply_version(key, version)
            if is_new and request.since is not None and key not in request.hinted:
                self._unconfirmed[key] = (version, self._probes + 1)
            if is_decided and key in self.followed:
                # A message may have raised the version during the read; no repetition is needed.
                self._keys_to_read.pop(key, None)
                self._on_ahead(key, self._version(self.followed[key]) or version)
            if request.since is not None:
                self._on_change(key)

    def _advance_position(self, position: int) -> None:
        """Marks all writes up to `position` as known, and the messages that directly follow."""
        out_of_order = self._out_of_order
        while out_of_order and position in out_of_order:
            position = out_of_order.pop(position)
        self.position = position

    # -- lost messages

    def begin_probe(self) -> int:
        """Returns the number of a new probe, to be sent through the channel; call `on_probe` when
        it returns."""
        self._probes += 1
        return self._probes

    def on_probe(self, probe: int) -> bool:
        """Handles a returned probe: all earlier messages have arrived or are lost. Returns whether
        it is the latest probe."""
        self._count_lost(probe)
        return probe == self._probes

    def _count_lost(self, probe: int) -> None:
        lost = [key for key, (_, number) in self._unconfirmed.items() if number <= probe]
        for key in lost:
            del self._unconfirmed[key]
        self.healed += len(lost)

    def _confirm(self, versions: Mapping[str, int]) -> None:
        """Marks these versions as confirmed: their messages were only late."""
        for key, version in versions.items():
            unconfirmed = self._unconfirmed.get(key)
            if unconfirmed is not None and version >= unconfirmed[0]:
                del self._unconfirmed[key]
