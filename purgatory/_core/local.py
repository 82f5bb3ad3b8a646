"""Addresses of this machine, and the names under which only this machine is meant.

A server that listens on a local address is not out of reach for the web: with DNS rebinding a
script of another site asks it under that site's name. So a local server also checks `Host`.
"""

from ipaddress import IPv6Address, ip_address
from re import IGNORECASE
from re import compile as regex
from typing import Final

_LOCAL_HOST: Final = regex(
    rb"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]{1,5})?", IGNORECASE
)


def is_local_host(header: bytes) -> bool:
    """Whether the value of a header `Host` is a local name or address, with or without a port."""
    return _LOCAL_HOST.fullmatch(header) is not None


def is_loopback(host: object) -> bool:
    """Whether `host` is an address of this machine alone."""
    try:
        address = ip_address(str(host))
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
