"""How long a report's page takes to open in Chromium: from the start of the navigation to the first
picture on the screen.

    python tests/pipeline/open_page.py report/report.html

Each opening is one of a new browser with nothing cached. Nothing is attached to it, as that makes
scripts start at half the speed: the page itself reports when it is complete. Needs chromium.
"""

import argparse
import os
import signal
import statistics
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from requirements import need

SIZES = {"desk": "1280,900", "phone": "500,844"}
"""A window of Chromium is at least 500 wide."""
WATCH = """<script>
    addEventListener("DOMContentLoaded", () => {
        document.getElementById("ends").scrollIntoView();  // a picture is drawn when it comes into sight
        const text = performance.now();
        const frame = new MessageChannel();  // whose message arrives when the frame is on the screen
        frame.port2.onmessage = () => fetch(`http://127.0.0.1:PORT/${text}/${performance.now()}`, {mode: "no-cors"});
        const look = () => {
            if (document.querySelector("#ends .barlayer path, #ends .scatterlayer path")) frame.port1.postMessage("");
            else requestAnimationFrame(look);
        };
        look();
    });
</script>"""
"""`performance.now()` counts from the start of the navigation."""


class Answer(BaseHTTPRequestHandler):
    """Keeps a page's reports."""

    def do_GET(self) -> None:
        self.server.told = [float(part) / 1000 for part in self.path.split("/")[1:]]  # type: ignore[attr-defined]
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def opening(page: Path, size: str) -> list[float]:
    """Opens a page; returns after how many seconds its text and tables were there, and after how
    many its first picture."""
    with (
        HTTPServer(("127.0.0.1", 0), Answer) as server,
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    ):
        server.timeout = 60
        server.told = None  # type: ignore[attr-defined]
        watched = Path(folder, "page.html")
        script = WATCH.replace("PORT", str(server.server_port))
        watched.write_text(
            page.read_text("utf-8").replace(
                '<meta charset="utf-8">', f'<meta charset="utf-8">{script}', 1
            ),
            "utf-8",
        )
        options = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--window-size={size}",
            f"--user-data-dir={folder}/profile",
        )
        command = [
            need("chromium", "needs a browser: apt-get install chromium"),
            *options,
            watched.as_uri(),
        ]
        browser = Popen(command, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
        try:
            server.handle_request()
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
        told: list[float] | None = server.told  # type: ignore[attr-defined]
        return told or sys.exit("the page was not there within 60 s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="the report.html of a report")
    parser.add_argument(
        "--times",
        type=int,
        default=5,
        metavar="N",
        help="how often at each size (default: %(default)s)",
    )
    chosen = parser.parse_args()
    print(f"{chosen.page.stat().st_size / 1e6:.2f} MB")
    for name, size in SIZES.items():
        texts, pictures = zip(
            *[opening(chosen.page, size) for _ in range(chosen.times)], strict=True
        )
        text, picture = statistics.median(texts), statistics.median(pictures)
        shown = " ".join(f"{each:.2f}" for each in sorted(pictures))
        print(f"{name:6} text and tables {text:.2f} s, first picture {picture:.2f} s, of {shown}")


if __name__ == "__main__":
    main()
