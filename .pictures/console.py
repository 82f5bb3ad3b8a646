"""Takes README's pictures of the page: `python .pictures/console.py`, in Chromium, of orders that
wait to be paid and shipped.

Needs the extra `test`, Chromium and its driver.
"""

import asyncio
import math
import random
import socket
import threading
import time
from pathlib import Path

import uvicorn
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from purgatory import DelayedOperation, Purgatory
from purgatory.console import console
from purgatory.metrics import Meter

SECONDS = 100  # of load before the first picture
SIZE = {"width": 1180, "height": 930, "deviceScaleFactor": 1, "mobile": False}
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-proxy-server",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]

meter = Meter()
payments: Purgatory["Order"] = Purgatory("payments", observer=meter)
shipments: Purgatory["Order"] = Purgatory("shipments", observer=meter)


class Order(DelayedOperation[None]):
    """Waits until it is ready."""

    ready = False

    def try_complete(self) -> bool:
        """Also runs at the deadline, if its key was not checked."""
        return self.ready and self.force_complete()


class Shipment(Order):
    """The same, of another kind."""


def begin(purgatory: Purgatory[Order], operation: Order, keys: list[str], seconds: float) -> None:
    """Starts an operation, and makes its event happen after some time; one in a thousand keys is
    not checked then."""
    purgatory.try_complete_else_watch(operation, keys)

    def happen() -> None:
        operation.ready = True
        if random.random() < 0.1:
            operation.cancel()
        elif random.random() > 0.001:
            purgatory.check_and_complete(keys[0])

    asyncio.get_running_loop().call_later(seconds, happen)


async def load() -> None:
    """Orders arrive in waves, for 90 customers; a few of these order much."""
    for number in range(1_000_000):
        rate = 60 + 45 * math.sin(time.monotonic() / 11)
        await asyncio.sleep(random.expovariate(rate))
        customer = int(min(random.paretovariate(0.6), 90))
        begin(
            payments,
            Order(random.choice([5, 20, 30, 60])),
            [f"orders/{number}", f"customer/{customer}"],
            random.expovariate(0.12),
        )
        if number % 3 == 0:
            begin(shipments, Shipment(120), [f"orders/{number}"], random.expovariate(0.05))


async def serve(port: int) -> None:
    """The page, and the load."""
    loading = asyncio.create_task(load())
    await uvicorn.Server(
        uvicorn.Config(
            console(payments, shipments, meter=meter, name="shop"), port=port, log_level="warning"
        )
    ).serve()
    loading.cancel()


def main() -> None:
    """Takes both pictures."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    threading.Thread(target=asyncio.run, args=[serve(port)], daemon=True).start()
    options = ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    with Chrome(options, ChromeService("/usr/bin/chromedriver")) as browser:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SIZE)
        browser.get(f"http://127.0.0.1:{port}/")
        time.sleep(SECONDS)
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            time.sleep(2.5)
            browser.save_screenshot(Path(__file__).with_name(f"console-{scheme}.png"))


if __name__ == "__main__":
    main()
