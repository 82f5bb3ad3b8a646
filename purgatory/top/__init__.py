"""What `purgatory.console` shows, in a terminal: `python -m purgatory.top
http://127.0.0.1:8000/purgatory`. Extra `top`.

Like the page, it long-polls for the next version of the state of one worker, and draws it below the
sum over all workers that are known. `q` ends it, the arrows scroll, `w` shows the next worker.

    _source     the server's responses
    _drawing    a state as lines of text
    _follow     one version after the other, and the keys
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from purgatory._core.arguments import allow_any_text, printable
from purgatory._core.errors import how_to_install
from purgatory.top._source import Source, of_a_page, reason


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m purgatory.top",
        description="Shows the page of purgatory.console in a terminal.",
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
    source = Source(options.url, headers)
    try:
        _show(source, is_once=options.once)
        return 0
    except ImportError:
        print(f"purgatory.top needs rich: {how_to_install('top')}", file=sys.stderr)
    except (OSError, ValueError) as error:
        print(reason(source, error), file=sys.stderr)
    return 1


def _show(source: Source, *, is_once: bool) -> None:
    # Here, for an error of one line if rich is not installed.
    from rich.console import Console, Group  # noqa: PLC0415

    from purgatory.top._drawing import screen  # noqa: PLC0415
    from purgatory.top._follow import follow  # noqa: PLC0415

    allow_any_text(sys.stdout)
    console = Console()
    if not is_once:
        with suppress(KeyboardInterrupt):
            follow(source, console)
        return
    state = source.once()
    with of_a_page():
        console.print(Group(*screen(state, "", console.height, console.width, time.time())))
