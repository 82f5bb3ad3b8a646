"""Versions of keys, shared by processes through a store: a wait completes wherever the write was made."""

from purgatory.relay._messages import Answer, Change, News, decode, encode

__all__ = ["Answer", "Change", "News", "decode", "encode"]
