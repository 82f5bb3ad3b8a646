"""The link of a process to its store: does what the protocol asks for, over a connection that comes and goes.

Two tasks. One listens, and subscribes again when the subscription has ended. The other asks the store what the follower wants
to know, one question at a time; what somebody wants to know meanwhile goes into the next question. A third one now and then,
which tells the other processes of this one. And a timer, for what no news tell: every `resync` seconds what has changed is
read, and a probe sent through the channel. If that does not come back in time, the connection is dead, however silent, and the
listening begins anew.
"""

import logging
from asyncio import AbstractEventLoop, CancelledError, Event, Future, Task, TimerHandle, gather, get_running_loop, sleep
from itertools import islice
from json import dumps
from random import uniform
from secrets import token_hex
from typing import Final, final

from purgatory import OperationCancelled, RelayUnavailable, Timeout, timeout
from purgatory.relay._follower import MOST_KEYS, Follower, Read
from purgatory.relay._messages import Card, decode, encode_card
from purgatory.relay._roll import Roll
from purgatory.relay._store import Store

GRACE: Final = 0.02
"""How long, in seconds, news may be overtaken by others before they are taken for lost."""

SHORTEST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0
"""Seconds between two tries to reach a store."""

log = logging.getLogger("purgatory.relay")


def pause(tries: int) -> float:
    """How long to wait, in seconds, after so many tries in vain; spread, so that many processes do not come back at once."""
    return min(LONGEST_PAUSE, SHORTEST_PAUSE * 2.0 ** min(tries, 10)) * uniform(0.5, 1.0)


@final
class Link:
    """Keeps a follower up to date.

    Args:
        store: an open one.
        follower: knows nothing yet.
        roll: who else is there.
        resync: seconds between two looks at the store that nothing has asked for.
        patience: seconds after which an answer is taken for lost.
    """

    def __init__(self, store: Store, follower: Follower, roll: Roll, resync: float, patience: float) -> None:
        self._store, self._follower, self._roll = store, follower, roll
        self._resync, self._patience = resync, patience
        self._loop: AbstractEventLoop = get_running_loop()
        self._has_work = Event()
        self._asked: dict[str, list[Future[int]]] = {}
        self._timer: TimerHandle | None = None
        self._gap_timer: TimerHandle | None = None
        self._deadline: Timeout | None = None
        """Of the listening: none while there is no doubt that it hears."""
        self._name = token_hex(8)
        """What tells its own probes from those of others."""
        self._introduction: Task[None] | None = None
        """Tells everyone of this process."""
        self._is_closing = False
        self.is_current = Event()
        """Set while `follower.is_current`."""
        self.since = self._loop.time()
        """The loop's time when that has last changed."""
        self.trouble: Exception | None = None
        """Why the store could not be reached, the last time."""
        self._tasks: list[Task[None]] = [
            self._loop.create_task(self._keep_listening(), name="purgatory.relay: listening"),
            self._loop.create_task(self._keep_reading(), name="purgatory.relay: reading"),
        ]
        self._set_timer()

    async def close(self) -> None:
        """Ends it, and tells whoever asked for a version."""
        self._is_closing = True
        self._give_up(self._asked)
        for timer in (self._timer, self._gap_timer):
            if timer is not None:
                timer.cancel()
        tasks = self._tasks if self._introduction is None else [*self._tasks, self._introduction]
        for task in tasks:
            task.cancel()
        await gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """To be called when the follower may want to know something."""
        follower = self._follower
        if follower.has_questions:
            self._has_work.set()
        elif follower.has_gap and self._gap_timer is None:
            self._gap_timer = self._loop.call_later(GRACE, self._fill_gap)

    def ask(self, key: str) -> Future[int]:
        """What the store has for `key`, read after this call."""
        future: Future[int] = self._loop.create_future()
        self._asked.setdefault(key, []).append(future)
        self._has_work.set()
        return future

    # -- listening

    async def _keep_listening(self) -> None:
        tries = 0
        while True:
            confirmations = self._follower.confirmations
            problem: Exception = RelayUnavailable(f"the subscription to {self._store.address} has ended")
            try:
                async with timeout(self._patience) as self._deadline:
                    await self._store.listen(self._confirmed, self._heard)
            except TimeoutError:
                problem = RelayUnavailable(f"nothing was heard from {self._store.address} within {self._patience} s")
            except Exception as error:
                problem = error
            finally:
                self._deadline = None
                self._follower.lost()
                self._note()
            self._report(problem)
            tries = 0 if self._follower.confirmations > confirmations else tries + 1
            await sleep(pause(tries))

    def _confirmed(self) -> None:
        if self._deadline is not None:
            self._deadline.reschedule(None)
        self._follower.confirmed()
        self._note()
        self.wake()

    def _heard(self, payload: bytes | str) -> None:
        try:
            message = decode(payload)
        except ValueError as error:
            log.warning("%s: %s", self._store.address, error)
            return
        if isinstance(message, Card):
            if self._roll.heard(message, self._loop.time()):
                self.introduce(calls=False)
        elif isinstance(message, str):
            name, _, number = message.partition(":")
            is_own = name == self._name and number.isdecimal() and len(number) < 20  # strangers may write to a store
            if is_own and self._follower.probed(int(number)) and self._deadline is not None:
                self._deadline.reschedule(None)
        else:
            self._follower.heard(message)
            self.wake()

    def introduce(self, calls: bool) -> None:
        """Tells everyone of this process, and has them do the same if `calls`; one at a time, as the next call is not far."""
        if self._introduction is not None and not self._introduction.done():
            return
        try:
            payload = encode_card(self._roll.card(calls))
        except Exception as error:
            message = f"{self._store.address}: this process cannot be introduced to the others"
            self._loop.call_exception_handler({"message": message, "exception": error})
        else:
            self._introduction = self._loop.create_task(self._introduce(payload), name="purgatory.relay: introduction")

    async def _introduce(self, payload: bytes) -> None:
        try:
            async with timeout(self._patience / 2.0):
                await self._store.send(payload)
        except Exception:  # then the others forget it, until they are called again
            log.debug("%s: an introduction was not sent", self._store.address, exc_info=True)

    async def _probe(self) -> None:
        """Sends a probe through the channel; it has to come back in time."""
        if not self._follower.is_subscribed:
            return
        number = self._follower.begin_probe()
        self._doubt()
        try:
            async with timeout(self._patience / 2.0):
                await self._store.send(dumps(f"{self._name}:{number}").encode())
        except Exception:  # then it does not come back
            log.debug("%s: a probe was not sent", self._store.address, exc_info=True)

    def _doubt(self) -> None:
        """Ends the listening, unless a probe comes back in time."""
        deadline = self._deadline
        if deadline is not None and deadline.when() is None:
            deadline.reschedule(self._loop.time() + self._patience)

    # -- reading

    async def _keep_reading(self) -> None:
        tries = 0
        while True:
            await self._has_work.wait()
            follower = self._follower
            if not (follower.has_questions or self._asked):
                self._has_work.clear()
                continue
            read = follower.begin_read()
            asked = {key: self._asked.pop(key) for key in tuple(islice(self._asked, MOST_KEYS))}
            try:
                await self._read(read, asked)
            except Exception as error:
                follower.failed(read)
                follower.resync()  # which ends with a probe
                self._doubt()
                for key, futures in asked.items():
                    self._ask_again(key, futures, error)
                self._report(error)
                await sleep(pause(tries))
                tries += 1
            except CancelledError:
                self._give_up(asked)
                raise
            else:
                tries = 0
                self._note()
                if read.since is not None:
                    self._set_timer()
                    await self._probe()

    async def _read(self, read: Read, asked: dict[str, list[Future[int]]]) -> None:
        follower, store = self._follower, self._store
        patience = self._patience / 2.0  # so that there is time for a second try
        epochs = follower.epochs
        try:
            async with timeout(patience):
                if follower.must_renew is not None:
                    log.warning("%s has fallen back behind what it had answered: its epoch ends", store.address)
                    await store.renew(follower.must_renew)
                    follower.must_renew = None
                answer = await store.read(tuple(dict.fromkeys((*read.keys, *asked))), read.since)
        except TimeoutError as error:
            raise RelayUnavailable(f"{store.address} gave no answer within {patience} s") from error
        follower.answered(read, answer)
        if follower.epochs > epochs > 0:
            log.warning("%s begins a new epoch, %s", store.address, follower.epoch)
        for key, futures in asked.items():
            for future in futures:
                if not future.done():
                    future.set_result(answer.versions[key])

    def _give_up(self, asked: dict[str, list[Future[int]]]) -> None:
        """Nobody will read these keys."""
        for key, futures in asked.items():
            self._ask_again(key, futures, OperationCancelled(f"cannot read {key!r}: the relay was closed"))

    def _ask_again(self, key: str, futures: list[Future[int]], error: Exception) -> None:
        """After a question in vain: whoever cannot expect better is told, the others wait on."""
        if not isinstance(error, RelayUnavailable):
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        waiting = [future for future in futures if not future.done()]
        if waiting:
            self._asked.setdefault(key, []).extend(waiting)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._resync * uniform(0.9, 1.0), self._look_again)

    def _look_again(self) -> None:
        self._follower.resync()
        self._has_work.set()

    def _fill_gap(self) -> None:
        self._gap_timer = None
        if self._follower.has_gap:
            self._look_again()

    # -- how it stands

    def _note(self) -> None:
        """Takes down whether all is well."""
        is_current = self._follower.is_current
        if is_current is self.is_current.is_set():
            return
        self.since = self._loop.time()
        if is_current:
            self.is_current.set()
            self.trouble = None
            log.info("%s: connected", self._store.address)
        else:
            self.is_current.clear()
            if not self._is_closing:
                log.warning("%s: not connected", self._store.address)

    def _report(self, error: Exception) -> None:
        """Writes down why the store could not be reached, once for each kind of trouble."""
        if self.trouble is None or str(error) != str(self.trouble):
            log.warning("%s", error, exc_info=None if isinstance(error, RelayUnavailable) else error)
        self.trouble = error
