"""Versions, so that no update is lost between two polls: a client names the version that it has
seen, and gets an answer at once if the current version is another one.

    GET /news                                       200, ETag: W/"8f3a21c0-41"   at once: it has
                                                                                 seen no version
    GET /news   If-None-Match: W/"8f3a21c0-41"      waits; at the deadline 304,
                                                    ETag: W/"8f3a21c0-41"
                              an update: bump       200, ETag: W/"8f3a21c0-42"
                              an update: bump       no poll is open
    GET /news   If-None-Match: W/"8f3a21c0-42"      200, ETag: W/"8f3a21c0-43"   at once
                              the server is restarted, and counts from 0
    GET /news   If-None-Match: W/"8f3a21c0-43"      200, ETag: W/"b07c55d9-0"    at once: not from
                                                                                 this server

A tag is the server's epoch and a version. As entity tags (RFC 9110), tags are compared only for
equality: if the client has the current version, its poll waits for the next one, otherwise it is
answered at once. So a client of an earlier server does not wait until the new one reaches its
number.

Proxies that compress change tags: Envoy drops strong ones, so ours are weak (`W/`), and Apache
sends `W/"8f3a21c0-41-gzip"`. So `parse` reads weak and strong tags, and ignores a suffix after the
number. To compare tags as texts would answer each poll at once, and its client would ask again
without a pause.

With a relay the versions and their epoch come from its store, so tags hold in all its workers, even
after all of them have restarted.

Without `If-None-Match` the same tag is taken from a parameter of the query, `?index=8f3a21c0-41`,
as in Consul's blocking queries.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from re import compile as regex
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast, final

from purgatory import RelayUnavailable, ThresholdPurgatory
from purgatory._core.arguments import describe
from purgatory._core.loop import LoopBinding, ThreadsafeInbox, running_loop
from purgatory.asgi._outcome import ANSWERS, Ending, Outcome
from purgatory.asgi._poll import Poll
from purgatory.asgi._request import Scope, header_values, query_parameter

if TYPE_CHECKING:
    from purgatory.relay import Relay
else:
    Relay = Any  # for `get_type_hints`: the package is imported only where it is in use

K = TypeVar("K", bound=Hashable)

MAX_VERSION: Final = 2**53 - 1
"""Greatest version that a client may name: a relay's versions are bounded, and are exact in
JSON."""

_ENTITY_TAG = regex(r'"([^"]*)"|([^\s,"]+)')
"""A tag in a header, or one that has lost its quotes on the way."""
_VERSION = regex(r"(0|[1-9][0-9]{0,18})(?![0-9])")
"""The number of a tag; a proxy may have added a suffix to it."""


@final
class Versions(Generic[K]):
    """The versions of resources, each a whole number under a key, zero until its first `bump`.

    Args:
        thresholds: holds the numbers and the waits; a new one if not given.
        epoch: distinguishes these numbers from an earlier server's numbers; random if not given.
            Where numbers outlive the server, as offsets in a file do for instance, so may the
            epoch. Letters, digits and underscores.
        unchanged: the status at the deadline: 304, or 204 where clients do not expect that.
        index_parameter: the query parameter that may replace `If-None-Match`.
        relay: a `Relay` that has the versions, in place of `thresholds` and `epoch`. `await
            relay.bump(key)` raises them.

    Raises:
        ValueError: an argument is out of its bounds.
        TypeError: both a relay and `thresholds` or `epoch` are given.
    """

    __slots__ = (
        "_binding",
        "_bumps",
        "_epoch",
        "_waits",
        "index_parameter",
        "relay",
        "thresholds",
        "unchanged",
    )

    def __init__(
        self,
        thresholds: ThresholdPurgatory[K, int] | None = None,
        *,
        epoch: str | None = None,
        unchanged: Literal[204, 304] = 304,
        index_parameter: str = "index",
        relay: Relay | None = None,
    ) -> None:
        if relay is not None:
            if thresholds is not None or epoch is not None:
                raise TypeError(
                    "the versions of a relay have its thresholds and its epoch: give neither "
                    "with it"
                )
            if isinstance(relay, str):
                raise TypeError(f"relay must be a Relay, not {describe(relay)}")
            thresholds = cast(Any, _RelayThresholds(relay))
        if epoch is None:
            epoch = token_hex(4)
        elif not (isinstance(epoch, str) and epoch.isascii() and epoch.replace("_", "a").isalnum()):
            raise ValueError(
                f"epoch must consist of letters, digits and underscores, not {epoch!r}"
            )
        if not isinstance(unchanged, int) or unchanged not in (204, 304):
            raise ValueError(f"unchanged must be 204 or 304, not {unchanged!r}")
        self.thresholds: ThresholdPurgatory[K, int] = (
            ThresholdPurgatory("versions") if thresholds is None else thresholds
        )
        self._epoch = epoch
        self.unchanged = unchanged
        self.index_parameter = index_parameter
        self.relay = relay
        self._binding = LoopBinding()
        self._bumps: ThreadsafeInbox[tuple[K, int]] = ThreadsafeInbox(
            self._binding, self._bump_from_threads
        )
        """Bumps from other threads: keys, and the number of bumps for each."""
        self._waits: dict[K, dict[int, tuple[Poll, int]]] = {}
        """The polls that wait for each key, and for which version."""

    @property
    def epoch(self) -> str:
        """Distinguishes these numbers from the numbers of other servers.

        Raises:
            RuntimeError: the versions come from a relay that was never open.
        """
        return self._epoch if self.relay is None else self.relay.epoch

    def version(self, key: K) -> int:
        """The version of `key`: how often it was bumped. Cost: O(1).

        Raises:
            RuntimeError: these are the versions of a relay.
        """
        self._refuse_relay("get the version of", key, "version")
        if running_loop() is not None and (
            not self._binding.is_bound or self._binding.loop.is_closed()
        ):
            self._bind("get the version of {}", key)
        return self.thresholds.value(key) or 0

    def bump(self, key: K) -> int:
        """Raises the version of `key` by one, and answers all who wait for it.

        Returns:
            The new version.

        Raises:
            PurgatoryFull, TypeError: see `ThresholdPurgatory.advance`.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
            RuntimeError: these are the versions of a relay.
        """
        self._refuse_relay("bump", key, "bump")
        self._bind("bump {}", key)
        return self._advance(key, 1)

    def bump_threadsafe(self, key: K) -> None:
        """Has `bump(key)` called on the loop soon; may be called from any thread, for instance by a
        handler that is a plain function, which frameworks run in a thread.

        However many calls come before the loop wakes up, it is woken once, and each call counts.
        Before the first use on a loop they wait for that; when the loop is closed they are without
        effect. Exceptions of `bump` go to the loop's exception handler.

        Raises:
            TypeError: `key` is not hashable.
            RuntimeError: these are the versions of a relay.
        """
        self._refuse_relay("bump", key, "bump")
        hash(key)
        self._bumps.put((key, 1))

    def tag(self, version: int) -> str:
        """A version for clients: `8f3a21c0-41`."""
        return f"{self.epoch}-{version}"

    def etag(self, version: int) -> str:
        """The value of an `ETag` header for a version: `W/"8f3a21c0-41"`. It is weak, because
        proxies that compress drop strong tags."""
        return f'W/"{self.tag(version)}"'

    def parse(self, tag: str) -> int | None:
        """The version in a tag or an `ETag`; `None` if it is not of this epoch, above
        `MAX_VERSION`, or no tag at all. A suffix that a proxy has added to the number is
        ignored."""
        tag, prefix = tag.removeprefix("W/").removeprefix('"'), f"{self.epoch}-"
        digits = _VERSION.match(tag, len(prefix)) if tag.startswith(prefix) else None
        version = MAX_VERSION + 1 if digits is None else int(digits[0])
        return version if version <= MAX_VERSION else None

    def seen(self, scope: Scope) -> int | None:
        """The version of this epoch that a request names, by `If-None-Match`, or else by the
        query parameter; `None` if it names none. For responses that resume where the last one
        ended."""
        return next((version for version in self._named(scope) if version is not None), None)

    def has_seen(self, scope: Scope, version: int) -> bool:
        """Whether a request names `version`, by `If-None-Match`, or else by the parameter of the
        query."""
        conditions = header_values(scope, b"if-none-match")
        return any(value.strip() == "*" for value in conditions) or version in self._named(scope)

    async def changed(self, poll: Poll, key: K) -> Outcome[int]:
        """Waits until the version of `key` differs from the version in the request.

        Returns:
            `SATISFIED` with the current version, to which data read before the next `await`
            belongs. At the `DEADLINE` the status is `unchanged`. Both with an `ETag`.

        Raises:
            RuntimeError, PurgatoryFull: see `Poll.reach`.
        """
        if self.relay is not None:
            return await self._changed_in(self.relay, poll, cast(str, key))
        self._bind("wait for {}", key)
        version = self.version(key)
        if self.has_seen(poll.scope, version):
            outcome = await self.reach(poll, key, version + 1)
        else:
            outcome = poll.at_once(version)
        if outcome.ending is not Ending.SATISFIED and outcome.ending is not Ending.DEADLINE:
            return outcome
        now = self.version(key)
        headers = {**outcome.headers, "ETag": self.etag(now)}
        if now == version and outcome.ending is Ending.DEADLINE:
            return replace(outcome, status=self.unchanged, headers=headers)
        status = ANSWERS[Ending.SATISFIED].status
        return replace(
            outcome, ending=Ending.SATISFIED, value=now, status=status, headers=headers, reason=""
        )

    async def reach(self, poll: Poll, key: K, version: int) -> Outcome[int]:
        """Waits until the version of `key` is at least `version`, as `Poll.reach`; or until a key
        that was forgotten meanwhile has a version again, which is lower.

        Returns:
            As `Poll.reach`; after a forgotten key the value may be None.
        """
        if self.relay is not None:
            return await poll.reach(self.thresholds, key, version)
        waits = self._waits.setdefault(key, {})
        wait = (poll, version)
        waits[id(wait)] = wait
        try:
            return await poll.reach(self.thresholds, key, version)
        finally:
            del waits[id(wait)]
            if not waits:
                self._waits.pop(key, None)

    def _advance(self, key: K, times: int) -> int:
        """Raises the version of `key`, and returns it."""
        was_forgotten = self.thresholds.value(key) is None  # or it never had a version
        version = self.version(key) + times
        self.thresholds.advance(key, version)
        if was_forgotten:
            for poll, awaited in tuple(self._waits.get(key, {}).values()):
                if awaited > version:
                    poll.interrupt(Ending.SATISFIED)
        return version

    def _named(self, scope: Scope) -> Iterator[int | None]:
        """The versions that a request names, `None` for tags of other epochs."""
        conditions = header_values(scope, b"if-none-match")
        if not conditions:
            return iter([self.parse(query_parameter(scope, self.index_parameter) or "")])
        tags = (found for value in conditions for found in _ENTITY_TAG.findall(value))
        return (self.parse(quoted or bare) for quoted, bare in tags)

    def _refuse_relay(self, action: str, key: K, method: str) -> None:
        if self.relay is not None:
            raise RuntimeError(
                f"cannot {action} {key!r} here: its versions come from a relay, so use `await "
                f"relay.{method}(...)`"
            )

    def _bind(self, action: str, key: K) -> None:
        """Binds these versions to the running loop, or raises `WrongLoop` if they are bound to
        another one."""
        binding = self._binding
        if running_loop() is not binding.loop and binding.bind(
            action, key, threadsafe="bump_threadsafe"
        ):
            self._bumps.rebind()

    def _bump_from_threads(self, bumps: Iterable[tuple[K, int]]) -> None:
        for key, times in _merged(bumps):
            try:
                self._advance(key, times)
            except Exception as error:
                message = f"cannot bump {describe(key)}, as another thread requested"
                self._binding.loop.call_exception_handler({"message": message, "exception": error})

    async def _changed_in(self, relay: Relay, poll: Poll, key: str) -> Outcome[int]:
        """`changed` with a relay. A client that has seen a version of its epoch waits, even while
        the store is unreachable. A client that has seen no version needs the current one, and is
        then refused with 503."""
        thresholds = cast(Any, _RelayThresholds(relay, relay.epoch))
        seen, version = self.seen(poll.scope), 0
        if seen is None:
            try:
                version = await relay.version(key)
            except RelayUnavailable:  # its text names the store's address, which is not for clients
                return poll.refuse(f"cannot read {describe(key)}: the store is unreachable")
            if self.has_seen(poll.scope, version):  # as `*` has any
                seen = version
        outcome: Outcome[int]
        outcome = (
            poll.at_once(version) if seen is None else await poll.reach(thresholds, key, seen + 1)
        )
        if outcome.ending is Ending.SATISFIED and outcome.value is not None:
            return replace(outcome, headers={**outcome.headers, "ETag": self.etag(outcome.value)})
        if outcome.ending is Ending.DEADLINE and seen is not None:
            headers = {**outcome.headers, "ETag": self.etag(seen)}
            return replace(outcome, status=self.unchanged, headers=headers)
        return outcome


def _merged(bumps: Iterable[tuple[K, int]]) -> Iterable[tuple[K, int]]:
    """Each key once."""
    counts: Counter[K] = Counter()
    for key, times in bumps:
        counts[key] += times
    return counts.items()


class _RelayThresholds:
    """The versions of a relay: the two methods of a `ThresholdPurgatory` that a poll calls."""

    __slots__ = ("_epoch", "_relay")

    def __init__(self, relay: Relay, epoch: str | None = None) -> None:
        self._relay, self._epoch = relay, epoch

    async def wait(self, key: str, threshold: int, timeout: float | None = None) -> int:
        """As `Relay.wait`, which may return a lower version if the epoch has changed."""
        return await self._relay.wait(key, threshold - 1, timeout, epoch=self._epoch)

    def value(self, _key: str) -> int | None:
        """Unknown: it is in the store, which may be unreachable."""
        return None
