"""``python -m purgatory.pipeline PROGRAM``.

During the imports, which take a second, Ctrl-C ends the process at once and without an exception: some modules turn an
exception during their import into another one.
"""

import signal
import sys

from purgatory.pipeline._interrupts import end_at_once

if __name__ == "__main__":
    signal.signal(signal.SIGINT, end_at_once)
    from purgatory.pipeline._command_line import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the output is complete, and Python only cleans up
    sys.exit(status)
