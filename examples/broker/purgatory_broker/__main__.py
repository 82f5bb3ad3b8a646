"""`python -m purgatory_broker`."""

from .command import main

main()
