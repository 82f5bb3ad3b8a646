"""How long a report's page takes to open in Chromium: from the start of the navigation to the first picture on the screen.

Beside these seconds it tells how long the page's main thread was at work by then, which others on the machine change less.

    python tests/pipeline/open_page.py report/report.html

Each opening is one of a new browser with nothing cached. Needs chromium and chromedriver.
"""

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from requirements import need
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.support.wait import WebDriverWait

ADVICE = "needs a browser: apt-get install chromium chromium-driver"
SIZES = {"desk": (1280, 900), "phone": (390, 844)}
WATCH = """
    addEventListener("DOMContentLoaded", () => {
        document.getElementById("ends").scrollIntoView();  // a picture is drawn when it comes into sight
        const look = () => {
            if (document.querySelector("#ends .barlayer path, #ends .scatterlayer path")) requestAnimationFrame(() => {
                document.documentElement.dataset.opened = performance.now();
            });
            else requestAnimationFrame(look);
        };
        look();
    });
"""
"""`performance.now()` counts from the start of the navigation."""


def options() -> ChromeOptions:
    """Of a Chromium without a window and a network."""
    chosen = ChromeOptions()
    chosen.binary_location = need("chromium", ADVICE)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"):
        chosen.add_argument(argument)
    return chosen


def opening(page: Path, size: tuple[int, int]) -> tuple[float, float]:
    """Opens a page, and returns how many seconds that took, and how many of them the main thread worked."""
    width, height = size
    with Chrome(options(), ChromeService(need("chromedriver", ADVICE))) as chrome:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        chrome.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        chrome.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        chrome.get(page.absolute().as_uri())
        opened = "return document.documentElement.dataset.opened"
        seconds = float(WebDriverWait(chrome, 60, 0.2).until(lambda browser: browser.execute_script(opened))) / 1000
        worked = chrome.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return seconds, next(each["value"] for each in worked if each["name"] == "TaskDuration")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="the report.html of a report")
    parser.add_argument("--times", type=int, default=5, metavar="N", help="how often at each size (default: %(default)s)")
    chosen = parser.parse_args()
    print(f"{chosen.page.stat().st_size / 1e6:.2f} MB")
    for name, size in SIZES.items():
        found = [opening(chosen.page, size) for _ in range(chosen.times)]
        seconds, worked = (sorted(each[place] for each in found) for place in (0, 1))
        shown = " ".join(f"{each:.2f}" for each in seconds)
        print(f"{name:6} median {statistics.median(seconds):.2f} s, of {shown}; main thread {statistics.median(worked):.2f} s")


if __name__ == "__main__":
    main()
