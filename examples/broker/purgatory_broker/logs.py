"""Texts of clients in the log: on one line, and once for a mistake that a client repeats."""

from typing import Final

MAX_SHOWN: Final = 200  # characters
MAX_MISTAKES: Final = 1000  # that are remembered


def printable(text: object) -> str:
    r"""The first 200 characters, with line breaks and escape sequences written as `\n` and
    `\x1b`."""
    shown = str(text)
    cut = shown[:MAX_SHOWN] + "..." if len(shown) > MAX_SHOWN else shown
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in cut)


class Mistakes:
    """The mistakes that clients have made, such as starting with TLS: they try again several times
    a second. Clients are distinguished by their host."""

    def __init__(self) -> None:
        self._made = set[tuple[str, str]]()

    def is_first(self, kind: str, host: str) -> bool:
        """Whether a client makes a mistake for the first time."""
        if (kind, host) in self._made:
            return False
        if len(self._made) >= MAX_MISTAKES:
            self._made.clear()
        self._made.add((kind, host))
        return True

    def clear(self) -> None:
        """Forgets them."""
        self._made.clear()
