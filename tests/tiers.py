"""Which slow tests run at night only, by `.ci/run --all`. `.ci/run` itself runs the nightly tests
of a room that a change touches."""

import re
from collections.abc import Iterable
from typing import Final

import pytest

NIGHTLY: Final = {
    "examples/broker/tests/": "",
    "tests/asgi/test_frozen.py": "",
    "tests/asgi/test_servers.py": "ending|open_files|under_load|cache|without_a_signal",
    "tests/core/test_kernel_build.py": "",
    "tests/examples/test_by_hand.py": "",
    "tests/examples/test_cookbook_page.py": "",
    "tests/examples/test_idle_connections.py": "",
    "tests/examples/test_long_poll_browser.py": "",
    "tests/examples/test_long_poll_demo.py": "",
    "tests/pipeline/on_spark/": "report_leaves_the_session|any_dataframes|killed_stream_decides",
    "tests/pipeline/test_page_browser.py": "",
    "tests/relay/": "test_stores|test_crash|waits_survive_killed_server",
    "tests/test_build.py": "",
    "tests/test_mutants.py": "",
    "tests/test_soak.py": "",
}
"""Files and folders whose slow tests are nightly, except for those that match the pattern."""


def is_nightly(nodeid: str) -> bool:
    """Whether a slow test, such as `tests/relay/test_stores.py::test_it[redis]`, is left to the
    night."""
    for place, in_gate in NIGHTLY.items():
        if nodeid.startswith(place):
            return not in_gate or re.search(in_gate, nodeid) is None
    return False


def mark_nightly(items: Iterable[pytest.Item]) -> None:
    """Marks slow tests as nightly; each conftest of a folder in `testpaths` calls this."""
    for item in items:
        if item.get_closest_marker("slow") and is_nightly(item.nodeid):
            item.add_marker("nightly")
