"""The sockets of a relay's processes in a folder: sends messages there, and removes those of processes that were killed."""

from asyncio import TimerHandle, get_running_loop
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from errno import EMSGSIZE
from os import O_RDONLY, close, fsencode
from os import open as open_file
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, socket
from stat import S_ISSOCK
from typing import Final, final

MAX_SOCKET_PATH: Final = 100
"""Bytes; systems allow 104 or 108."""

MAX_QUEUED: Final = 100
"""Messages kept for a socket that is full."""


@final
class SocketFolder:
    """Sends to sockets in a folder, by their names.

    Args:
        folder: need not exist yet.
        on_gone: called with the name of a socket at which nobody receives any more.
    """

    def __init__(self, folder: Path, on_gone: Callable[[str], None]) -> None:
        self._folder, self._on_gone = folder, on_gone
        self._sender: socket | None = None
        self._descriptor: int | None = None
        """Of the folder, if its path is too long for that of a socket."""
        self._queues: dict[str, deque[bytes]] = {}
        """Messages for sockets that are full."""
        self._flush_timer: TimerHandle | None = None

    def open(self) -> None:
        """Makes the socket that sends, unless it is there."""
        self._sender = self._sender or datagram_socket()

    def close(self) -> None:
        """Drops what was not sent."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        if self._sender is not None:
            self._sender.close()
        if self._descriptor is not None:
            close(self._descriptor)
            self._descriptor = None

    def send(self, name: str, payload: bytes) -> None:
        """Sends a message, later if the socket is full. Of very many, the oldest are dropped, which leaves a gap."""
        queue = self._queues.get(name)
        if queue is None:
            if self._try_send(name, payload):
                return
            queue = self._queues[name] = deque(maxlen=MAX_QUEUED)
        queue.append(payload)
        if self._flush_timer is None:
            self._flush_timer = get_running_loop().call_later(0.001, self._flush, 0.001)

    def _try_send(self, name: str, payload: bytes) -> bool:
        """Sends a message, or drops it if that cannot be done; False if the socket is full."""
        assert self._sender is not None
        try:
            self._sender.sendto(payload, self.path(name))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != EMSGSIZE:  # which leaves a gap
                self._on_gone(name)
        return True

    def _flush(self, delay: float) -> None:
        self._flush_timer = None
        for name, queue in list(self._queues.items()):
            while queue and self._try_send(name, queue[0]):
                queue.popleft()
                delay = 0.001
            if not queue:
                self._queues.pop(name, None)
        if self._queues:
            delay = min(delay * 2.0, 0.1)
            self._flush_timer = get_running_loop().call_later(delay, self._flush, delay)

    def remove(self, name: str) -> None:
        """Removes a socket, and what is kept for it."""
        self._queues.pop(name, None)
        with suppress(OSError):
            (self._folder / name).unlink()

    def remove_dead(self, prefix: str) -> None:
        """Removes sockets of processes that were killed, and nothing else of such a name."""
        for path in self._folder.glob(f"{prefix}.*.sock"):
            with suppress(OSError), datagram_socket() as probe:
                if is_named(path, prefix, 16) and S_ISSOCK(path.lstat().st_mode):
                    try:
                        probe.connect(self.path(path.name))
                    except ConnectionRefusedError:
                        path.unlink()

    def path(self, name: str) -> str:
        """The path of a socket; through a descriptor of the folder, if it is too long for a socket."""
        path = str(self._folder / name)
        if len(fsencode(path)) <= MAX_SOCKET_PATH:
            return path
        if self._descriptor is None:
            if not Path("/proc/self/fd").is_dir():
                raise OSError(f"the path of a socket, {path!r}, is longer than {MAX_SOCKET_PATH} bytes")
            self._descriptor = open_file(self._folder, O_RDONLY)
        return f"/proc/self/fd/{self._descriptor}/{name}"


def datagram_socket() -> socket:
    """A socket that does not block."""
    new = socket(AF_UNIX, SOCK_DGRAM)
    new.setblocking(False)
    return new


def is_named(path: Path, prefix: str, digits: int) -> bool:
    """Whether a file is named as those of a store are: by so many hexadecimal digits between the prefix and the suffix."""
    middle = path.name.removeprefix(f"{prefix}.").removesuffix(path.suffix)
    return len(middle) == digits and set(middle) <= set("0123456789abcdef")
