"""The server of a page: its versions, one after the other, of one worker; and the other workers."""

import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from purgatory._core.arguments import printable

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

GONE_TTL: Final = 60.0
"""Seconds for which a worker that is no longer listed is shown as gone."""

MAX_RESPONSE_BYTES: Final = 8 * 1024 * 1024
MAX_HISTORY: Final = 300


@contextmanager
def of_a_page() -> Iterator[None]:
    """For everything that reads an answer: an address may lead to any server.

    Raises:
        ValueError: the response is not a console state.
    """
    wrong = ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError
    try:
        yield
    except wrong as error:
        raise ValueError(f"the response is not a state of purgatory.console: {error!r}") from error


class _NoRedirect(HTTPRedirectHandler):
    """The headers are secrets, for the server that the user named."""

    # urllib passes six arguments by position
    def redirect_request(self, *request: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Refuses a redirect."""
        _, response, *_, url = request
        response.close()
        place = printable(url.partition("?")[0].removesuffix("state"))
        raise ValueError(f"it redirects to {place}: give that address")


class Source:
    """The server of the page, polled for one version after the other.

    Args:
        url: address of the page, or of its folder.
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
        """The name of the worker to show; empty for any."""
        self.choices: SimpleQueue[str] = SimpleQueue()
        """Names of workers that the user wants to see, from any thread; the last one counts."""
        self.met: dict[str, tuple[float, dict[str, Any]]] = {}
        """Workers that have answered instead of the wanted one, and when."""
        # A proxy would look for a local address on its own machine.
        host = parts.hostname or ""
        is_local = host == "localhost" or host == "::1" or host.startswith("127.")
        self._opener = build_opener(_NoRedirect, *([ProxyHandler({})] if is_local else []))
        self._probes: list[Thread] = []
        """The connections of probes that have not ended."""
        self._heard: dict[str, tuple[float, dict[str, Any]]] = {}
        """Other workers of the last minute by name, and when each was last heard."""
        self._history: deque[list[Any]] = deque(maxlen=MAX_HISTORY)
        self._worker = ""

    def next(self) -> dict[str, Any] | None:
        """Returns the next version, with the whole known history; None if there was none in time.

        Raises:
            OSError: the server is unreachable, or refuses; `HTTPError` is a subclass. Or the wanted
                worker has not answered; the next call takes any.
            ValueError: the response is not the state of a page, or leads to another server.
        """
        for _ in range(MAX_MISSES):
            state, is_misdirected = self._ask()
            if not is_misdirected:
                return state
            self.probe()  # keeps the other workers busy, too
        gone, self.wanted = self.wanted, ""
        raise OSError(f"worker {gone} does not answer")

    def _ask(self) -> tuple[dict[str, Any] | None, bool]:
        """The next version, and whether another worker than the wanted one has answered."""
        with suppress(Empty):
            while True:
                self.wanted = self.choices.get_nowait()
        headers = self.headers | ({"If-None-Match": self.tag} if self.tag else {})
        if self.wanted:
            headers["Purgatory-Worker"] = quote(self.wanted)
        try:
            with self._opener.open(
                Request(self.url, headers=headers), timeout=RESPONSE_TIMEOUT
            ) as response:
                body, tag = response.read(MAX_RESPONSE_BYTES), response.headers.get("ETag", "")
        except HTTPError as error:
            if error.code != 304:
                raise
            error.close()
            return None, False
        except HTTPException as error:
            raise OSError(f"the connection broke: {error!r}") from error
        with of_a_page():
            state: dict[str, Any] = json.loads(body)
            if "purgatories" not in state:
                self._meet(state)
                return None, True
            if state["worker"]["id"] != self._worker:
                self._history.clear()
            self.tag, self._worker = tag, state["worker"]["id"]
            self.wanted = name_of(state["worker"])
            self._history.extend(state["history"])
            if "others" in state:
                state["others"] = self._others(state)
            state["gone"] = self._gone(state)
        return state | {"history": list(self._history)}, False

    def _others(self, state: dict[str, Any]) -> list[dict[str, Any]] | None:
        """The other known workers: from the relay, and from answers."""
        oldest = time.monotonic() - MET_TTL
        self.met = {name: each for name, each in list(self.met.items()) if each[0] > oldest}
        others = {name: each for name, (_, each) in self.met.items()}
        others |= {name_of(each): each for each in state.get("others") or ()}
        others.pop(name_of(state["worker"]), None)
        return None if state.get("others") is None and not others else list(others.values())

    def _gone(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """The other workers of the last minute that are no longer listed, and for how many seconds
        each has not been heard."""
        now = time.monotonic()
        listed = {name_of(each): each for each in (state["worker"], *(state.get("others") or ()))}
        known = self._heard | {
            name: (now - (each.get("ago") or 0.0), each) for name, each in listed.items()
        }
        recent = [(name, each) for name, each in known.items() if now - each[0] < GONE_TTL]
        self._heard = dict(recent[-MAX_WORKERS:])
        return [
            each | {"ago": now - heard}
            for name, (heard, each) in self._heard.items()
            if name not in listed
        ]

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
        self._probes = [each for each in self._probes if each.is_alive()]
        answers: list[str] = []
        # Daemons: the program may end at any time.
        begun = [
            Thread(target=self._introduce, args=(answers,), daemon=True)
            for _ in range(PROBES - len(self._probes))
        ]
        self._probes += begun
        deadline = time.monotonic() + PROBE_TIMEOUT
        for thread in begun:
            thread.start()
        for thread in begun:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return len(answers)

    def _introduce(self, answers: list[str]) -> None:
        """Meets the worker that answers, and adds its name to `answers`."""
        request = Request(self._worker_url, headers=self.headers)
        try:
            with self._opener.open(request, timeout=PROBE_TIMEOUT) as response:
                answers.append(self._meet(json.loads(response.read(MAX_RESPONSE_BYTES))))
        except HTTPError as error:
            error.close()
        except (OSError, HTTPException, ValueError):
            pass

    def _meet(self, worker: dict[str, Any]) -> str:
        with of_a_page():
            name = name_of(worker)
            self.met[name] = time.monotonic(), worker | {"address": None}
            return name

    def once(self) -> dict[str, Any] | None:
        """The state, when the other workers have had the time to announce themselves."""
        state = self.next()
        if state is not None and self.is_probed(state):
            misses = 0
            # In a row: of many workers the last one is rare.
            while misses < MAX_MISSES and len(self.met) < MAX_WORKERS:
                known = len(self.met)
                if not self.probe():
                    break
                misses = misses + PROBES if len(self.met) == known else 0
            return state | {"others": self._others(state)}
        for _ in range(MAX_ANNOUNCEMENTS if state is not None and state["relay"] else 0):
            known = len((state or {}).get("others") or ())
            state = self.next() or state
            if 0 < known == len((state or {}).get("others") or ()):
                break
        return state


def name_of(worker: dict[str, Any]) -> str:
    """The name of a worker among all of them."""
    return f"{worker['pid']}@{worker.get('host', '')}"


def reason(source: Source, error: Exception) -> str:
    """Why the server of the page did not answer, or with what, on one line."""
    text: object = error.reason if isinstance(error, URLError) else error
    if isinstance(error, HTTPError):
        with error:
            text = f"{error.code}: {error.read(500).decode(errors='replace').strip()}"
        if error.code == 404:
            text = f"{text}; is purgatory.console mounted at this address?"
    return f"{source.shown}: {printable(text)}"
