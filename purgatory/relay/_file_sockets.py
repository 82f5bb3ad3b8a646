"""The sockets of a relay's processes in a folder. Sends messages to them, and removes the sockets
of killed processes."""

import re
import sys
from asyncio import TimerHandle, get_running_loop
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EMSGSIZE
from os import O_RDONLY, close, fchmod, fsencode
from os import open as open_file
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, socket
from stat import S_ISSOCK
from typing import Final, final

MAX_SOCKET_PATH: Final = 100
"""Length of a socket path, in bytes; systems allow 104 or 108."""

MAX_DATAGRAM: Final = 1 << 16
"""Size of a message, in bytes."""

MAX_QUEUED: Final = 100
"""Messages queued per full socket."""


@final
class SocketFolder:
    """Sends to sockets in a folder, by their names.

    Args:
        folder: the folder of the sockets; need not exist yet.
        on_gone: called with the name of a socket that has no receiver any more.
    """

    def __init__(self, folder: Path, on_gone: Callable[[str], None]) -> None:
        self._folder, self._on_gone = folder, on_gone
        self._sender: socket | None = None
        self._queues: dict[str, deque[bytes]] = {}
        """Full sockets -> messages queued for them."""
        self._flush_timer: TimerHandle | None = None

    def open(self) -> None:
        """Creates the sending socket, unless it exists."""
        self._sender = self._sender or datagram_socket()

    def close(self) -> None:
        """Closes the sending socket. Queued messages are dropped."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        if self._sender is not None:
            self._sender.close()

    def send(self, name: str, payload: bytes) -> None:
        """Sends a message, or queues it while the socket is full. Above `MAX_QUEUED` the oldest are
        dropped, which receivers notice as a gap."""
        queue = self._queues.get(name)
        if queue is None:
            if self._try_send(name, payload):
                return
            queue = self._queues[name] = deque(maxlen=MAX_QUEUED)
        queue.append(payload)
        if self._flush_timer is None:
            self._flush_timer = get_running_loop().call_later(0.001, self._flush, 0.001)

    def _try_send(self, name: str, payload: bytes) -> bool:
        """Sends a message; on an error, drops it. Returns False if the socket is full."""
        assert self._sender is not None
        try:
            with self.address(name) as address:
                self._sender.sendto(payload, address)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != EMSGSIZE:  # too large: only this message is lost
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
        """Removes a socket and its queued messages."""
        self._queues.pop(name, None)
        path = self._folder / name
        with suppress(OSError):
            if S_ISSOCK(path.lstat().st_mode):
                path.unlink()

    def remove_dead(self, prefix: str) -> None:
        """Removes the sockets of killed processes, but no other files with such names."""
        for path in self._paths(prefix):
            if self._is_dead(path):
                path.unlink(missing_ok=True)

    def has_listener(self, prefix: str) -> bool:
        """Whether a process of this machine has a socket there."""
        return any(self._is_dead(path) is False for path in self._paths(prefix))

    def _paths(self, prefix: str) -> list[Path]:
        paths = self._folder.glob(f"{prefix}.*.sock")
        return [path for path in paths if is_file_name(path.name, prefix, "sock")]

    def _is_dead(self, path: Path) -> bool | None:
        """Whether the socket's process is gone; None if that is unknown."""
        with suppress(OSError), datagram_socket() as probe:
            if S_ISSOCK(path.lstat().st_mode):
                try:
                    with self.address(path.name) as address:
                        probe.connect(address)
                except ConnectionRefusedError:
                    return True
                return False
        return None

    @contextmanager
    def address(self, name: str) -> Iterator[str]:
        """The path of a socket; if it is too long, through a descriptor of the folder, which may be
        another one the next time."""
        path = str(self._folder / name)
        if len(fsencode(path)) <= MAX_SOCKET_PATH:
            yield path
            return
        if not Path("/proc/self/fd").is_dir():
            raise OSError(f"the path of a socket, {path!r}, is longer than {MAX_SOCKET_PATH} bytes")
        folder = open_file(self._folder, O_RDONLY)
        try:
            yield f"/proc/self/fd/{folder}/{name}"
        finally:
            close(folder)


def datagram_socket() -> socket:
    """A non-blocking socket. On Linux its mode is set before it is bound, so users outside its
    group never have access; a later `chmod` would follow a link."""
    new = socket(AF_UNIX, SOCK_DGRAM)
    new.setblocking(False)
    if sys.platform == "linux":
        fchmod(new.fileno(), 0o660)
    return new


def is_file_name(name: object, prefix: str, suffix: str) -> bool:
    """Whether `name` has the form of this store's file names, `prefix.0123abcd.suffix`. Names from
    the folder or the database are checked here before they are used as paths."""
    digits = {"sock": 16, "sqlite": 8}[suffix]
    form = rf"{re.escape(prefix)}\.[0-9a-f]{{{digits}}}\.{suffix}"
    return isinstance(name, str) and re.fullmatch(form, name) is not None
