"""The protocol: what a process knows of the versions in a store that it cannot see. Knows no network, no loop and no clock.

News arrive over a channel that may lose, repeat, delay and reorder them. That does no harm, because versions only rise within
an epoch and the store can be read again: what the process knows of a key advances by maximum, and news only make it quick.

    subscribe, and wait for the confirmation    else what is written between the read and the subscription is never heard of
    read what has changed since position 41     the confirmation may be the second one: what came in between is lost
    news: after 41, up to 43, orders/7 is 5     in order: position 43
    news: after 44, up to 45, orders/9 is 2     44 is missing, so read since 43; if it comes meanwhile, there is no need to
    read since 43: up to 45, orders/7 is 6      healed: no news had told; counted, once a probe through the same channel has
                                                come back and the news have not
    read since 45: up to 40                     the store has fallen back behind what it had answered: renew its epoch, so that
                                                nobody waits until the old numbers come round again
    read since 45: of another epoch             what waits is told what stands now, and is done

A wait names the version that its caller has seen. What the store says in a read that *began after the wait* can only be that or
more; if it is less, the caller has his number from an earlier epoch, and is answered with what stands, as to a change of epoch.

Sources: Centrifugo's recovery by offset and epoch; etcd's revisions; for the form, h11: events in, what to do out.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple, final

from purgatory.relay._messages import Answer, News

MOST_KEYS: Final = 1_000
"""How many keys one read asks for."""

MOST_AHEAD: Final = 1_000
"""How many news beyond a gap are remembered; with more, what is missing is read at once."""


class Read(NamedTuple):
    """What to ask the store: `keys`, and what has changed since a position, if not None."""

    keys: tuple[str, ...]
    since: int | None
    known: dict[str, int]
    latest: int
    """What was known of `keys`, and of positions, when it began. An answer that is behind comes from a store that has lost
    something."""
    confirmations: int


@final
class Watched:
    """A key that somebody waits for."""

    __slots__ = ("count", "highest", "is_of_old_epoch", "version")

    def __init__(self) -> None:
        self.count = 0
        """How many wait for it."""
        self.version: int | None = None
        """The highest known; None until it was read."""
        self.highest = 0
        """What the one who has seen most has seen; some of these may be gone."""
        self.is_of_old_epoch = False
        """Its waits began in an earlier epoch, and are to be told what stands in this one as soon as that is known."""


@final
class Follower:
    """Follows a store: keeps what is known of the keys that somebody waits for, and says what to ask the store next.

    Args:
        rise: called with a watched key and its new version, which is higher than any before in this epoch.
        rebase: called with a watched key and the version that stands, when some who wait for it have seen a version of another
            epoch. Only those may wait on who have seen just the one that stands, in this epoch.
        tell: called with every key of which there are news, watched or not.
    """

    def __init__(
        self, rise: Callable[[str, int], None], rebase: Callable[[str, int], None], tell: Callable[[str], None]
    ) -> None:
        self._rise, self._rebase, self._tell = rise, rebase, tell
        self.epoch: str | None = None
        self.position = 0
        """All that was written up to here is known, of every watched key that is not wanted."""
        self.latest = 0
        """The latest position that was heard of in this epoch."""
        self.watched: dict[str, Watched] = {}
        self.is_subscribed = self.is_current = False
        """Whether news arrive; and whether all that came before them was read."""
        self.tells_all = False
        """Whether `tell` has to be called with every key that a new epoch has, and not only with those that are watched."""
        self.must_renew: str | None = None
        """The epoch that the store is to be told to end."""
        self.epochs = self.resyncs = self.healed = self.received = 0
        self.confirmations = 0
        self._probes = 0
        self._is_behind = True
        """Whether to read what has changed since `position`."""
        self._wanted: dict[str, None] = {}
        """Keys to be read, in order."""
        self._ahead: dict[int, int] = {}
        """News beyond a gap: the position that they came after -> theirs."""
        self._suspects: dict[str, tuple[int, int]] = {}
        """Keys whose version a read has found -> that version, and the probe that tells whether its news were lost."""
        self._flight: Read | None = None

    # -- who waits

    def watch(self, key: str, seen: int) -> None:
        """One more waits for `key`, who has seen version `seen`."""
        watched = self.watched.get(key)
        if watched is None:
            watched = self.watched[key] = Watched()
        watched.count += 1
        if watched.version is None or seen > watched.version:
            self._wanted[key] = None
        if seen > watched.highest:
            watched.highest = seen

    def unwatch(self, key: str) -> bool:
        """One less waits for `key`; whether it was the last."""
        watched = self.watched[key]
        watched.count -= 1
        if watched.count:
            return False
        del self.watched[key]
        self._wanted.pop(key, None)
        return True

    # -- the channel

    def confirmed(self) -> None:
        """The subscription stands, for the first time or again."""
        self.confirmations += 1
        self.is_subscribed, self.is_current = True, False
        self._is_behind = True
        if self.confirmations > 1:
            self._wanted.update(dict.fromkeys(self.watched))  # it may have crashed, and may not count on from where it was
        self._judge(self._probes + 1)  # what has not come through the channel that there was, never will

    def lost(self) -> None:
        """The subscription stands no more."""
        self.is_subscribed = self.is_current = False

    def heard(self, news: News) -> None:
        """News have come."""
        versions = news.versions
        self.received += len(versions)
        if self._suspects:
            self._acquit(versions)
        self._learn(news)

    def _learn(self, news: News) -> None:
        epoch, after, position, versions = news
        if epoch != self.epoch:
            self._is_behind = True  # which of the two is the later one, only the store can tell
            return
        self.latest = max(self.latest, position)
        if after >= 0:
            if position <= self.position:
                return
            if after <= self.position:
                self._move(position)
            else:
                self._ahead[after] = position
                self._is_behind = self._is_behind or len(self._ahead) > MOST_AHEAD
        for key, version in versions.items():
            watched = self.watched.get(key)
            if watched is not None and (watched.version is None or version > watched.version):
                self._raise(key, watched, version)
            self._tell(key)

    def wrote(self, news: News, latest: int) -> None:
        """The answer to a write has come, which began when `latest` was that."""
        if news.epoch == self.epoch and news.after < news.position <= latest:
            self.must_renew, self._is_behind = news.epoch, True  # a write is behind nothing that was before it
        self._learn(news)

    @property
    def has_gap(self) -> bool:
        """Whether news came before others that are still missing."""
        return bool(self._ahead)

    # -- reads

    def resync(self) -> None:
        """What has changed is to be read, as news may have been lost."""
        self._is_behind = True

    @property
    def has_questions(self) -> bool:
        """Whether there is anything to ask the store."""
        return self._flight is None and (self._is_behind or bool(self._wanted))

    def begin_read(self) -> Read:
        """What to ask the store. Then comes `answered` or `failed`, before the next one."""
        wanted = self._wanted
        keys = tuple(islice(wanted, MOST_KEYS))
        for key in keys:
            del wanted[key]
        since = self.position if self._is_behind and self.epoch is not None else None
        self._is_behind = False
        known = {key: version for key in keys if (version := self.watched[key].version) is not None}
        self._flight = Read(keys, since, known, self.latest, self.confirmations)
        return self._flight

    def failed(self, read: Read) -> None:
        """The read has not been answered."""
        self._flight = None
        self._is_behind = self._is_behind or read.since is not None or self.epoch is None
        self._wanted.update((key, None) for key in read.keys if key in self.watched)

    def answered(self, read: Read, answer: Answer) -> None:
        """The read was answered."""
        self._flight = None
        if answer.epoch != self.epoch:
            self._begin_epoch(read, answer)
        elif max(answer.position, answer.latest) < read.latest or self._has_fallen(read, answer):
            self.must_renew = self.epoch
            self.failed(read)
            return
        elif read.since is not None:
            self.resyncs += 1
            self._is_behind = self._is_behind or answer.has_more
            if answer.position > self.position:
                self._move(answer.position)
            self._ahead = {after: position for after, position in self._ahead.items() if position > self.position}
        self.latest = max(self.latest, answer.position)
        self._take(read, answer)
        if read.confirmations == self.confirmations and self.is_subscribed and not self._is_behind:
            self.is_current = True

    @staticmethod
    def _has_fallen(read: Read, answer: Answer) -> bool:
        """Whether a version is lower than it was: others have written as much since as the store had lost."""
        return any(answer.versions.get(key, version) < version for key, version in read.known.items())

    def _begin_epoch(self, read: Read, answer: Answer) -> None:
        self.epochs += 1
        self.epoch, self.position, self.must_renew = answer.epoch, answer.position, None
        self.latest = answer.position
        if self.tells_all and self.epochs > 1:
            self.position, self._is_behind = 0, True
        self._ahead.clear()
        self._suspects.clear()
        asked = set(read.keys)
        for watched in self.watched.values():
            watched.is_of_old_epoch = watched.is_of_old_epoch or watched.version is not None
            watched.version = None
        self._wanted.update((key, None) for key in self.watched if key not in asked)

    def _take(self, read: Read, answer: Answer) -> None:
        asked = set(read.keys)
        for key, version in answer.versions.items():
            watched = self.watched.get(key)
            if watched is not None:
                is_known = watched.version is not None
                if watched.version is None or version > watched.version:
                    self._raise(key, watched, version)
                    if is_known and read.since is not None:
                        self._suspects[key] = (version, self._probes + 1)
                if key in asked:
                    self._answer_those_beyond(key, watched)
            if read.since is not None:
                self._tell(key)

    def _answer_those_beyond(self, key: str, watched: Watched) -> None:
        """Tells those who have seen more than there is, unless they came after the read had begun: they want it again."""
        version = watched.version
        if version is not None and watched.highest > version and key not in self._wanted:
            watched.highest = version
            self._rebase(key, version)

    def _raise(self, key: str, watched: Watched, version: int) -> None:
        watched.version = version
        if watched.is_of_old_epoch:
            watched.is_of_old_epoch = False
            watched.highest = 0
            self._rebase(key, version)
        else:
            self._rise(key, version)

    def _move(self, position: int) -> None:
        """Everything up to `position` is known, and what was heard beyond it."""
        ahead = self._ahead
        while ahead and position in ahead:
            position = ahead.pop(position)
        self.position = position

    # -- what was lost, and healed

    def begin_probe(self) -> int:
        """The number of a probe to be sent through the channel, for `probed` when it has come back."""
        self._probes += 1
        return self._probes

    def probed(self, probe: int) -> bool:
        """A probe has come back, and so have all news before it; whether it is the latest one."""
        self._judge(probe)
        return probe == self._probes

    def _judge(self, probe: int) -> None:
        lost = [key for key, (_, number) in self._suspects.items() if number <= probe]
        for key in lost:
            del self._suspects[key]
        self.healed += len(lost)

    def _acquit(self, versions: Mapping[str, int]) -> None:
        for key, version in versions.items():
            suspect = self._suspects.get(key)
            if suspect is not None and version >= suspect[0]:
                del self._suspects[key]
