"""``python -m purgatory.pipeline PROGRAM``.

Ctrl-C ends it at any time with one line and the exit status that shells use for it.
"""

import os
import signal
import sys
from typing import NoReturn


def end_at_once(*_: object) -> NoReturn:
    """Ends the process during imports, where some modules turn an exception into another one."""
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, end_at_once)  # until the program runs
    from purgatory.pipeline._command_line import main

    status = main()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the output is complete, and Python only cleans up
    sys.exit(status)
