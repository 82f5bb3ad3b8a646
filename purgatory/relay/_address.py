"""Addresses of stores, with passwords left out of errors and logs."""

from urllib.parse import urlsplit


def without_password(url: str) -> str:
    """The address without user, password and options. This holds for malformed addresses, too: the
    text before the last `@` is dropped, and so is a port that is not a number."""
    scheme, separator, _ = url.partition("://")
    start = scheme + separator if separator and scheme.replace("+", "a").isalnum() else ""
    rest = url.removeprefix(start).rpartition("@")[2]
    host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    name, colon, port = host.rpartition(":")
    is_port = port.isdigit() or port.endswith("]")
    return start + (host if is_port or not colon else name) + slash + path


def check_address(url: str) -> str:
    """Returns the address of a server unchanged, if it is well-formed.

    Raises:
        ValueError: the `//` is missing, the user or password contains an unescaped delimiter, or
            the port is not a number.
    """
    parts = urlsplit(url)
    if not url.lower().startswith(f"{parts.scheme}://"):
        raise ValueError(f"expected {parts.scheme}://..., got {without_password(url)!r}")
    try:
        is_valid = parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or "@" in parts.path + parts.query + parts.fragment:
        raise ValueError(
            f"cannot use {without_password(url)!r}: the port must be a number, and user and "
            "password must be written with %2F for /, %3F for ?, %23 for # and %40 for @"
        )
    return url
