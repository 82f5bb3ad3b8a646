"""``python -m purgatory.pipeline PROGRAM``.

The imports take a second. Ctrl-C then ends the process at once, without an exception: some modules turn one that comes while
they are imported into another.
"""

import signal
import sys

from purgatory.pipeline._interrupts import end_at_once

if __name__ == "__main__":
    signal.signal(signal.SIGINT, end_at_once)
    from purgatory.pipeline._command_line import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said, and Python only cleans up
    sys.exit(status)
