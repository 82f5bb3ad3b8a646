"""Options that several programs have."""

import argparse
import os


def add_master_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--master``, the address of Spark, and ``--verbose``."""
    parser.add_argument(
        "--verbose", action="store_true", help="show Spark's output, and the duration of each step"
    )
    parser.add_argument(
        "--master",
        metavar="URL",
        help="where Spark is: local[N], spark://…, or sc://… for Spark Connect "
        "(default: from spark-submit, SPARK_REMOTE or Spark's configuration; otherwise all "
        "cores of this machine)",
    )


def has_session() -> bool:
    """Whether this process belongs to a session of Spark: it was started by ``spark-submit``, or
    ``SPARK_REMOTE`` names a Spark Connect."""
    return any(os.environ.get(name) for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"))
