"""Addresses of stores, without what may not be shown."""

from urllib.parse import urlsplit, urlunsplit


def without_password(url: str) -> str:
    """An address without user, password and options."""
    try:
        parts = urlsplit(url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    except ValueError:
        return url.partition(":")[0] + "://..."
