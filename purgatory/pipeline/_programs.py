"""What the programs share: options, errors, and text for terminals and pages.

Names from journals may carry escape sequences, and URIs secrets.
"""

import argparse
import os
import re
from typing import Final

from purgatory._core.arguments import printable

PASSWORD: Final = re.compile(r"(://[^\s'\"/@:]*):[^\s'\"]*@")
"""From the colon after the user to the last @ of an address."""
SECRET: Final = re.compile(r"(?i)(token|password|secret|signature|sig)=[^\s'\";&]*")


class NoJournal(Exception):
    """There is no journal where one should be."""


class SparkUnavailable(Exception):
    """Spark cannot be started here; the message has the reason and a remedy."""


def add_master_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--master``, the address of Spark, and ``--verbose``."""
    text = "show Spark's output, and the duration of each step"
    parser.add_argument("--verbose", action="store_true", help=text)
    text = (
        "where Spark is: local[N], spark://…, or sc://… for Spark Connect (default: from "
        "spark-submit, SPARK_REMOTE or Spark's configuration; otherwise all cores of this machine)"
    )
    parser.add_argument("--master", metavar="URL", help=text)


def has_session() -> bool:
    """Whether this process belongs to a session of Spark: it was started by ``spark-submit``, or
    ``SPARK_REMOTE`` names a Spark Connect."""
    return any(os.environ.get(name) for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"))


def without_secrets(text: object) -> str:
    """Replaces passwords and tokens in URIs by ``***``."""
    return SECRET.sub(r"\1=***", PASSWORD.sub(r"\1:***@", str(text)))


def shown(text: object) -> str:
    """The text on one line, printable and without secrets."""
    return printable(without_secrets(text))
