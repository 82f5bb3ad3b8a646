"""Who may see the page, if its author has not said: a visitor on this machine, who has come to it by a local name.

Either alone is not enough. A proxy on this machine makes every visitor's address a local one; a name that its owner points to
127.0.0.1 makes every browser here a visitor, for a stranger's script (DNS rebinding). So both the peer's address and the `Host`
must be local, and whatever says that a proxy has passed the request on tells against it, whatever it says the visitor's address
to be; also that it speaks HTTP/1.0, as nginx does to what is behind it, and no browser. (nginx, if it is told nothing else,
sends no header that tells of it, and the address behind it as `Host`. Since 1.29.7 it speaks HTTP/1.1.) A proxy that leaves no
trace, and names itself in `Host`, cannot be told from a visitor: behind one, say who may see it.
"""

from ipaddress import IPv6Address, ip_address
from re import IGNORECASE
from re import compile as regex
from typing import Final

from purgatory.asgi._types import Scope

_LOCAL_HOST: Final = regex(rb"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]{1,5})?", IGNORECASE)

_OF_PROXIES: Final = (
    b"forwarded",
    b"via",
    b"x-forwarded",
    b"x-real-ip",
    b"x-client-ip",
    b"x-original",
    b"true-client-ip",
    b"cf-",
)
"""How the names of header fields begin by which proxies tell that there is one."""


def is_local(scope: Scope) -> bool:
    """Whether a request comes from this machine, for a local name of it, and through no proxy that tells so."""
    client = scope.get("client")
    if not client or not _is_loopback(client[0]) or scope.get("http_version") == "1.0":
        return False
    headers = [(name.lower(), value) for name, value in scope.get("headers", ())]
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 or not _LOCAL_HOST.fullmatch(hosts[0]):
        return False
    return not any(name.startswith(_OF_PROXIES) for name, _ in headers)


def is_from_elsewhere(scope: Scope) -> bool:
    """Whether a browser says that a page of another site has asked for this."""
    sites = {value for name, value in scope.get("headers", ()) if name.lower() == b"sec-fetch-site"}
    return not sites <= {b"same-origin", b"none"}


def _is_loopback(host: object) -> bool:
    try:
        address = ip_address(str(host))
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
