"""Options that several programs have."""

import argparse


def add_master_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--master``, which says where Spark is, and ``--verbose``."""
    parser.add_argument("--verbose", action="store_true", help="show what Spark says, and how long each step takes")
    parser.add_argument(
        "--master",
        metavar="URL",
        help="where Spark is: local[N], spark://…, or sc://… for Spark Connect "
        "(default: what SPARK_REMOTE says, otherwise all cores of this machine)",
    )
