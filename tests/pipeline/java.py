"""Java's options for tests: a test ends before the better of Java's compilers would have paid."""

from typing import Final

OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
JAVA_FOR_TESTS: Final = {"JAVA_TOOL_OPTIONS": OPTIONS}
"""Of the environment of a process that starts Java."""
