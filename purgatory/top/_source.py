"""The server of a page: its versions, one after the other, of one worker; and the other workers."""

import json
import time
from collections import deque
from http.client import HTTPException
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from purgatory._core.arguments import printable
from purgatory.top._shape import check_state, check_worker, name_of

RESPONSE_TIMEOUT: Final = 60.0
"""Seconds. There is a response for each refresh of the page."""

MAX_MISSES: Final = 40
"""Answers of other workers before the wanted one counts as gone; and answers to `--once` without an
unknown worker before the known ones count as all."""

PROBES: Final = 5
"""Connections that one probe opens at once. One after the other, most would go to the worker
that the system wakes first."""

PROBE_TIMEOUT: Final = 10.0
"""Seconds until a probe is over, whatever the server sends."""

MAX_WORKERS: Final = 256
"""Limit of workers for `--once`, whatever a foreign server answers."""

MAX_ANNOUNCEMENTS: Final = 4
"""Versions in which `--once` waits for the announcements of other workers."""

MET_TTL: Final = 15.0
"""Seconds for which a worker counts that has answered instead of the wanted one."""

MAX_RESPONSE_BYTES: Final = 8 * 1024 * 1024
MAX_WORKER_BYTES: Final = 64 * 1024
MAX_HISTORY: Final = 300


class _SameOrigin(HTTPRedirectHandler):
    """Follows redirects within the server alone: the headers are secrets."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Refuses a redirect to another scheme, host or port."""
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            fp.close()
            raise ValueError(
                f"it redirects to {printable(after.scheme)}://{printable(after.netloc)}, another"
                " server: give that address"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Source:
    """The server of the page, polled for one version after the other.

    Args:
        url: of the page, or of its folder.
        headers: further request headers, for `authorize`.
    """

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        self.url = urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/state"))
        self._worker_url = urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/worker"))
        self.shown = printable(urlunsplit(parts._replace(query="", fragment="")))
        """The address for messages, without its query, which may be a secret."""
        self.headers = headers
        self.tag = ""
        self.wanted = ""
        """The name of the worker whose state is wanted; empty for any."""
        self.met: dict[str, tuple[float, dict[str, Any]]] = {}
        """Workers that have answered instead of the wanted one, and when."""
        # A proxy would look for a local address on its own machine.
        host = parts.hostname or ""
        is_local = host == "localhost" or host == "::1" or host.startswith("127.")
        self._opener = build_opener(_SameOrigin, *([ProxyHandler({})] if is_local else []))
        self._probes: list[Thread] = []
        """The connections of probes that have not ended."""
        self._history: deque[list[Any]] = deque(maxlen=MAX_HISTORY)
        self._worker = ""

    def next(self) -> dict[str, Any] | None:
        """Returns the next version, with the whole known history; None if there was none in time.

        Raises:
            OSError: the server is unreachable, or refuses; `HTTPError` is a subclass.
            ValueError: the response is not the state of a page, or leads to another server.
        """
        for _ in range(MAX_MISSES):
            state: dict[str, Any] | None
            state, is_misdirected = self._ask()
            if not is_misdirected:
                return state
            self.probe()  # keeps the others busy, too
        self.wanted = ""  # it is gone, so any other one
        return None

    def _ask(self) -> tuple[dict[str, Any] | None, bool]:
        """The next version, and whether another worker than the wanted one has answered."""
        headers = self.headers | ({"If-None-Match": self.tag} if self.tag else {})
        if self.wanted:
            headers["Purgatory-Worker"] = quote(self.wanted)
        try:
            with self._opener.open(
                Request(self.url, headers=headers), timeout=RESPONSE_TIMEOUT
            ) as response:
                state: dict[str, Any] = self._decode(response.read(MAX_RESPONSE_BYTES))
                tag = response.headers.get("ETag", "")
        except HTTPError as error:
            if error.code == 304:
                error.close()
                return None, False
            if error.code == 421 and self.wanted:
                with error:
                    worker = self._decode(error.read(MAX_RESPONSE_BYTES))
                check_worker(worker)
                self._meet(worker)
                return None, True
            raise
        except HTTPException as error:
            raise OSError(f"the connection broke: {error!r}") from error
        try:
            check_state(state)
        except ValueError as error:
            raise ValueError(f"this is not of a page of purgatory.asgi.console: {error}") from error
        self.tag = tag
        if state["worker"]["id"] != self._worker:
            self._history.clear()
            self._worker = state["worker"]["id"]
        self.wanted = name_of(state["worker"])
        self.met.pop(self.wanted, None)
        self._history.extend(state["history"])
        if "others" in state:
            state |= {"others": self._others(state)}
        return state | {"history": list(self._history)}, False

    def _others(self, state: dict[str, Any]) -> list[dict[str, Any]] | None:
        """The other known workers: from the relay, and from answers."""
        now = time.monotonic()
        self.met = {name: each for name, each in self.met.items() if now - each[0] < MET_TTL}
        others = {name: each for name, (_, each) in self.met.items()}
        others |= {name_of(each): each for each in state.get("others") or ()}
        return None if state.get("others") is None and not others else list(others.values())

    @staticmethod
    def is_probed(state: dict[str, Any]) -> bool:
        """Whether the other workers are found by `probe`, since there is no relay."""
        return "others" in state and state["relay"] is None

    def probe(self) -> int:
        """Asks for the worker's name, over `PROBES` connections at once: of several workers behind
        one address, each connection may lead to another one.

        Returns:
            The number of answers within `PROBE_TIMEOUT`.
        """
        answers: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._probes = [each for each in self._probes if each.is_alive()]
        # Daemons: the program may end at any time.
        begun = [
            Thread(target=self._introduce, args=(answers,), daemon=True)
            for _ in range(PROBES - len(self._probes))
        ]
        for thread in begun:
            thread.start()
        self._probes += begun
        count, deadline = 0, time.monotonic() + PROBE_TIMEOUT
        for _ in begun:
            try:
                worker = answers.get(timeout=max(deadline - time.monotonic(), 0.0))
            except Empty:
                break
            if worker is not None:
                self._meet(worker)
                count += 1
        return count

    def _introduce(self, answers: "SimpleQueue[dict[str, Any] | None]") -> None:
        """Puts the introduction of the worker that answers; None if none does."""
        request = Request(self._worker_url, headers=self.headers)
        worker = None
        try:
            with self._opener.open(request, timeout=PROBE_TIMEOUT) as response:
                found = self._decode(response.read(MAX_WORKER_BYTES))
            check_worker(found)
            worker = found
        except HTTPError as error:
            error.close()
        except (OSError, HTTPException, ValueError):
            pass
        finally:
            answers.put(worker)

    def _meet(self, worker: dict[str, Any]) -> None:
        if name_of(worker) != self.wanted:
            self.met[name_of(worker)] = time.monotonic(), worker | {"address": None}

    @staticmethod
    def _decode(body: bytes) -> Any:
        try:
            return json.loads(body)
        except RecursionError:
            raise ValueError("the answer is nested too deep") from None

    def once(self) -> dict[str, Any] | None:
        """The state, when the other workers have had the time to announce themselves."""
        state = self.next()
        if state is None:
            return None
        if self.is_probed(state):
            misses = 0
            # In a row: of many workers the last one is rare.
            while misses < MAX_MISSES and len(self.met) < MAX_WORKERS:
                known = len(self.met)
                if not self.probe():
                    break
                misses = misses + PROBES if len(self.met) == known else 0
            return state | {"others": self._others(state)}
        if state["relay"] is None:
            return state
        for _ in range(MAX_ANNOUNCEMENTS):
            known = len(state.get("others") or ())
            state = self.next() or state
            if 0 < known == len(state.get("others") or ()):
                break
        return state
