"""Addresses of stores, without what may not be shown."""

from urllib.parse import urlsplit


def without_password(url: str) -> str:
    """An address without user, password and options, whatever is wrong with it: nothing before its last `@`, and no port that
    is not a number."""
    scheme, separator, _ = url.partition("://")
    start = scheme + separator if separator and scheme.replace("+", "a").isalnum() else ""
    rest = url.removeprefix(start).rpartition("@")[2]
    host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    name, colon, port = host.rpartition(":")
    is_port = port.isdigit() or port.endswith("]")
    return start + (host if is_port or not colon else name) + slash + path


def check_address(url: str) -> str:
    """The address of a server.

    Raises:
        ValueError: its user or password has a character that ends it, or its port is no number.
    """
    parts = urlsplit(url)
    try:
        is_valid = parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or "@" in parts.path + parts.query + parts.fragment:
        raise ValueError(
            f"cannot use {without_password(url)!r}: its port is no number, or a character of its user or password is not "
            "written as %2F for /, %3F for ?, %23 for # or %40 for @"
        )
    return url
