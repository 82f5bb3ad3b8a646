"""What `purgatory.asgi.console` shows, in a terminal: `python -m purgatory.top
http://127.0.0.1:8000/purgatory`. Extra `top`.

Like the page, it long-polls for the next version of the state of one worker, and draws it below the
sum over all workers that are known. `q` ends it, the arrows scroll, `w` shows the next worker.

    _source, _shape    the server's responses, and their checks
    _drawing           a state as text
    _follow            one version after the other, and the keys
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from purgatory._core.arguments import printable
from purgatory._core.errors import how_to_install

try:
    from rich.console import Console
except ImportError as error:
    raise ImportError(f"purgatory.top needs rich: {how_to_install('top')}") from error

from purgatory.top._drawing import distributions as distributions
from purgatory.top._drawing import keys_of as keys_of
from purgatory.top._drawing import quantile as quantile
from purgatory.top._drawing import screen as screen
from purgatory.top._follow import follow
from purgatory.top._source import Source as Source


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m purgatory.top",
        description="Shows the page of purgatory.asgi.console in a terminal.",
        epilog="Keys: q quits, w shows the next worker, the arrows scroll.",
    )
    parser.add_argument(
        "url", help="address of the page, for instance http://127.0.0.1:8000/purgatory"
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="request header, for authorize; it is sent to this server alone",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="show the current state with all workers that announce themselves, and exit",
    )
    options = parser.parse_args(arguments)
    if urlsplit(options.url).scheme not in ("http", "https"):
        parser.error(f"url must begin with http:// or https://, got {printable(options.url)!r}")
    headers = {}
    for header in options.header:
        name, colon, value = header.partition(":")
        if not colon:
            parser.error("header must be NAME:VALUE, got one without a colon")
        headers[name.strip()] = value.strip()
    source, console = Source(options.url, headers), Console()
    try:
        if options.once:
            console.print(screen(source.once(), "", console.height, console.width))
        else:
            with suppress(KeyboardInterrupt):
                follow(source, console)
    except HTTPError as error:
        with error:
            text = error.read(500).decode(errors="replace").strip()
        hint = "; is purgatory.asgi.console mounted at this address?" if error.code == 404 else ""
        print(f"{source.shown}: {error.code}: {printable(text)}{hint}", file=sys.stderr)
        return 1
    except URLError as error:
        print(f"{source.shown}: {printable(error.reason)}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"{source.shown}: {printable(error)}", file=sys.stderr)
        return 1
    return 0
