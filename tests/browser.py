"""Headless Chromium for all tests that need it: a plugin with the session's fixture `browser`, for
`pytest_plugins = ["browser"]`. It reaches 127.0.0.1 and files of this machine, and nothing else."""

import shutil
from collections.abc import Iterator

import pytest
from requirements import need, unavailable
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

MISSING = "needs Chromium and its driver. On Debian: apt-get install chromium chromium-driver"
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-proxy-server", "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]  # fmt: skip


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """The one of this process; it takes seconds to start."""
    options = ChromeOptions()
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    binaries = filter(None, map(shutil.which, NAMES))
    options.binary_location = next(binaries, None) or unavailable(MISSING)
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(flag)
    with Chrome(options, ChromeService(need("chromedriver", MISSING))) as chrome:
        yield chrome


@pytest.fixture
def browser(chromium: Chrome) -> Iterator[Chrome]:
    """It, with one empty window of the usual size, and an empty log."""
    first, *_ = chromium.window_handles
    chromium.get_log("browser")
    yield chromium
    for window in chromium.window_handles:
        chromium.switch_to.window(window)
        if window != first:
            chromium.close()
    chromium.switch_to.window(first)
    chromium.get("about:blank")
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
