"""The page: pending operations, slow waits and missed triggers. `console` makes it, an ASGI
application to mount anywhere.

a page ── GET state, with the tag of its version ──> _app: is it authorized?    purgatory._local
                                                      │  waits for the next version
every second, while a page is open:                   │
_feed ── one purgatory per iteration ──> _describe ──> the JSON of this version, made once, for all pages
"""

from purgatory.console._app import console

__all__ = ["console"]
