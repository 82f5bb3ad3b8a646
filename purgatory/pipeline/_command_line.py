"""The command line of the pipeline: ``python -m purgatory.pipeline PROGRAM``."""

import sys
from collections.abc import Sequence
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from purgatory._programs import Program, run_program
from purgatory.pipeline import _interrupts, compact, synth
from purgatory.pipeline._executor import TaskFailed, exception_line
from purgatory.pipeline._reading import NoJournal
from purgatory.pipeline._session import SparkUnavailable
from purgatory.pipeline.report import _command as report
from purgatory.pipeline.simulate import _command as simulate
from purgatory.pipeline.streaming import _command as stream

PROGRAMS: tuple[Program, ...] = (compact.PROGRAM, report.PROGRAM, simulate.PROGRAM, stream.PROGRAM, synth.PROGRAM)
USER_ERRORS: Final = (SparkUnavailable, NoJournal, TaskFailed, PySparkException, Py4JError, OSError)
"""Errors whose message is enough for a user; a traceback would not help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program that the arguments name, and returns its exit status: 1 if it failed, 130 after Ctrl-C.

    In both cases it prints one line that says so.
    """
    description = "Reads the journals of purgatories, and decides on streams of operations."
    try:
        return run_program("python -m purgatory.pipeline", description, PROGRAMS, arguments)
    except (Exception, KeyboardInterrupt) as error:
        if _interrupts.is_interruption(error):
            print(_interrupts.LINE, file=sys.stderr)
            return _interrupts.STATUS
        if not isinstance(error, USER_ERRORS) or "--verbose" in (sys.argv if arguments is None else arguments):
            raise
        print(exception_line(str(error)), file=sys.stderr)
        return 1
