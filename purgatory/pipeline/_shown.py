"""Text for terminals and pages: names from journals may carry escape sequences, URIs secrets."""

import re
from typing import Final

from purgatory._core.arguments import printable

PASSWORD: Final = re.compile(r"(://[^\s'\"/@:]*):[^\s'\"]*@")
"""From the colon after the user to the last @ of an address."""
SECRET: Final = re.compile(r"(?i)(token|password|secret|signature|sig)=[^\s'\";&]*")


def without_secrets(text: object) -> str:
    """Replaces passwords and tokens in URIs by ``***``."""
    return SECRET.sub(r"\1=***", PASSWORD.sub(r"\1:***@", str(text)))


def shown(text: object) -> str:
    """The text on one line, printable and without secrets."""
    return printable(without_secrets(text))
