"""The default access rule of the page and of metrics: visitors on this machine, under a local name,
not through a proxy.

Neither the address nor the name is enough. With a proxy on this machine every visitor has a local
address; with DNS rebinding a script of another site runs in a browser here, and asks under that
site's name. So both the peer's address and the `Host` must be local, and no header of a proxy may
be present, with any content. Nor may the request be HTTP/1.0, which nginx speaks to its upstream,
and no browser does. (By default nginx adds no header, and sends the upstream's address as `Host`.
Since 1.29.7 it speaks HTTP/1.1.) A proxy that leaves no trace, and has a local name in `Host`,
looks like a visitor: behind one, the page needs its `authorize`.
"""

from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from re import IGNORECASE
from re import compile as regex
from typing import Any, Final

_LOCAL_HOST: Final = regex(
    rb"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]{1,5})?", IGNORECASE
)

_PROXY_PREFIXES: Final = (
    b"ali-cdn-", b"akamai-", b"cdn-", b"cf-", b"client-ip", b"do-connecting-ip", b"fastly-",
    b"fly-", b"forwarded",
    b"incap-", b"proxy-client-ip", b"remote-addr", b"remote-ip", b"true-client-ip", b"via",
    b"wl-proxy-", b"x-akamai-",
    b"x-amz-cf-", b"x-amzn-", b"x-appengine-", b"x-arr-", b"x-azure-", b"x-client-ip",
    b"x-cloud-trace-context",
    b"x-cluster-client-ip", b"x-envoy-", b"x-forwarded", b"x-google-", b"x-host", b"x-nf-",
    b"x-original", b"x-proxy",
    b"x-real-ip", b"x-request-start", b"x-sucuri-", b"x-vercel-",
)  # fmt: skip
"""Prefixes of the header fields that proxies add."""


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


def refusal(scope: Mapping[str, Any]) -> str:
    """The rule that a request breaks; an empty text if it comes from this machine, names it
    locally, and shows no trace of a proxy. The text repeats nothing of the request.

    Args:
        scope: ASGI scope of a request.
    """
    client = scope.get("client")
    if not client or not is_loopback(client[0]):
        return "the peer's address is not one of this machine"
    if scope.get("http_version") == "1.0":
        return "it is in HTTP/1.0, which proxies speak and no browser does"
    headers = [(name.lower(), value) for name, value in scope.get("headers", ())]
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 or not is_local_host(hosts[0]):
        return "the header Host is not a local name of this machine"
    for prefix in _PROXY_PREFIXES:
        if any(name.startswith(prefix) for name, _ in headers):
            return f"it has a header that begins with {prefix.decode()}, which comes from a proxy"
    return ""
