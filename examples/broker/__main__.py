"""`python examples/broker`, or `python -m broker` where this folder can be imported."""

import sys
from pathlib import Path

if not __package__:  # started as a folder: make the package importable
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from broker.command import main

main()
