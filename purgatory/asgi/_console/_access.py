"""Who may see the page by default: a visitor on this machine, under a local name of it, and not through a proxy.

Neither the address nor the name is enough. With a proxy on this machine every visitor has a local address; with DNS rebinding
a script of another site runs in a browser here. So both the peer's address and the `Host` must be local, and no header may come
from a proxy, whatever it says the visitor's address is. Nor may the request be HTTP/1.0, which nginx speaks to its upstream,
and no browser does. (By default nginx adds no header, and sends the upstream's address as `Host`. Since 1.29.7 it speaks
HTTP/1.1.) A proxy that leaves no trace, and has a local name in `Host`, looks like a visitor: behind one, give `authorize`.
"""

from ipaddress import IPv6Address, ip_address
from re import IGNORECASE
from re import compile as regex
from typing import Final

from purgatory.asgi._types import Scope

_LOCAL_HOST: Final = regex(rb"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]{1,5})?", IGNORECASE)

_PROXY_PREFIXES: Final = (
    b"forwarded", b"via", b"x-forwarded", b"x-real-ip", b"x-client-ip", b"x-original", b"true-client-ip", b"cf-"
)  # fmt: skip
"""How the names of the header fields begin that proxies add."""


def refusal(scope: Scope) -> str:
    """Which rule a request breaks; an empty text if it comes from this machine, to a local name of it, and shows no trace of a
    proxy. It repeats nothing of the request."""
    client = scope.get("client")
    if not client or not _is_loopback(client[0]):
        return "the peer's address is not one of this machine"
    if scope.get("http_version") == "1.0":
        return "it is in HTTP/1.0, which proxies speak and no browser does"
    headers = [(name.lower(), value) for name, value in scope.get("headers", ())]
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 or not _LOCAL_HOST.fullmatch(hosts[0]):
        return "the header Host is not a local name of this machine"
    for prefix in _PROXY_PREFIXES:
        if any(name.startswith(prefix) for name, _ in headers):
            return f"it has a header that begins with {prefix.decode()}, which comes from a proxy"
    return ""


def is_cross_site(scope: Scope) -> bool:
    """Whether a browser says that a page of another site has made this request."""
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
