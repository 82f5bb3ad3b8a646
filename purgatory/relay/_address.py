"""Addresses of stores, with passwords left out of errors and logs."""

from collections.abc import Container
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

SCHEMES: Final = {
    "valkey": "redis",
    "valkeys": "rediss",
    "redis+sentinel": "redis",
    "rediss+sentinel": "rediss",
    "postgres": "postgresql",
    "postgresql+asyncpg": "postgresql",
}
"""Further schemes of addresses -> the schemes that the clients know."""


def without_password(url: str) -> str:
    """The address without user, password and options. This holds for malformed addresses, too: the
    text before the last `@` is dropped, and so is a port that is not a number."""
    scheme, separator, _ = url.partition("://")
    start = scheme + separator if separator and scheme.replace("+", "a").isalnum() else ""
    rest = url.removeprefix(start).rpartition("@")[2]
    host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    name, colon, port = host.rpartition(":")
    is_port = port.isdigit() or port.endswith("]") or all(map(has_port, host.split(",")))
    return start + (host if is_port or not colon else name) + slash + path


def has_port(host: str) -> bool:
    """Whether a host has a valid port or none."""
    try:
        return urlsplit(f"//{host}").port != 0
    except ValueError:
        return False


def hosts_of(url: str) -> list[str]:
    """The hosts of an address, with their ports."""
    return urlsplit(url).netloc.rpartition("@")[2].split(",")


def require_address(url: str, *, takes_several_hosts: bool = False) -> str:
    """Returns the address of a server, with the scheme that its client knows, if it is well-formed.

    Args:
        url: an address.
        takes_several_hosts: whether it may name several hosts, separated by commas.

    Raises:
        ValueError: the `//` is missing, the user or password contains an unescaped delimiter, a
            port is not a number, or there are too many hosts.
    """
    parts = urlsplit(url)
    shown = without_password(url)
    if not url.lower().startswith(f"{parts.scheme}://"):
        raise ValueError(f"expected {parts.scheme}://..., got {shown!r}")
    hosts = hosts_of(url)
    if len(hosts) > 1 and not takes_several_hosts:
        raise ValueError(f"cannot use {shown!r}: expected one host, got {len(hosts)}")
    rest = parts.path + parts.query + parts.fragment
    if not all(map(has_port, hosts)) or "@" in rest or "://" in url.partition("://")[2]:
        several = f", several hosts as in {parts.scheme}://host1:1234,host2:1234"
        raise ValueError(
            f"cannot use {shown!r}: the port must be a number, and user and password must be "
            "written with %2F for /, %3F for ?, %23 for # and %40 for @; an IPv6 address must be "
            "written in brackets" + (several if takes_several_hosts else "")
        )
    return SCHEMES.get(parts.scheme, parts.scheme) + url[len(parts.scheme) :]


def single_addresses(url: str) -> list[str]:
    """The address of each host of an address with several, without path and options."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    return [f"{parts.scheme}://{user}{at}{host}" for host in hosts_of(url)]


def without_options(url: str, names: Container[str]) -> str:
    """The address without these options."""
    start, _, query = url.partition("?")
    options = parse_qsl(query.partition("#")[0])
    kept = urlencode([(name, value) for name, value in options if name not in names])
    return f"{start}?{kept}" if kept else start
