"""How often the compiled functions call their Python definitions instead of doing the work in C.

Also a plugin of pytest, which counts in its own process:
`PYTHONPATH=tests python -m pytest -p benchmarks.passes -n 0 tests/asgi`.
"""

import sys
from collections.abc import Mapping
from typing import Any


def passed() -> dict[str, int]:
    """The calls so far, by the name of the function; empty without the kernel in C."""
    found: dict[str, int] = {}
    for name, module in [*sys.modules.items()]:
        if name.startswith("purgatory._core."):
            values = [*vars(module).values()]
            values += [
                each for cls in values if isinstance(cls, type) for each in vars(cls).values()
            ]
            for each in values:
                if type(each).__name__ == "compiled_function":
                    found[each.__qualname__] = each.passed
    return found


def shown(before: Mapping[str, int], after: Mapping[str, int], operations: int) -> str:
    """The calls from `before` to `after` for each operation, without those of less than one in a
    hundred."""
    each = {name: (count - before.get(name, 0)) / operations for name, count in after.items()}
    return ", ".join(f"{name} {share:.2f}" for name, share in each.items() if share >= 0.01)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.section("calls of Python definitions")
    for name, count in sorted(passed().items(), key=lambda each: -each[1]):
        terminalreporter.line(f"{count:10,} {name}")
