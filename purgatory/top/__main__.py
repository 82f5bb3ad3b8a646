"""`python -m purgatory.top`."""

import sys

from purgatory.top import main

sys.exit(main())
