"""``python -m purgatory.pipeline PROGRAM``.

Ctrl-C ends it at any time with one line: see `_interrupts`.
"""

import signal
import sys

from purgatory.pipeline._interrupts import during_imports

if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # which a shell's job in the background would ignore
    with during_imports():
        from purgatory.pipeline._command_line import main
    status = main()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the output is complete, and Python only cleans up
    sys.exit(status)
