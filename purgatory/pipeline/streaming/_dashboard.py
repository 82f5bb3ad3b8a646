"""Shows a running stream, on this machine: metrics for Prometheus, and the page of
`purgatory.console`.

After each batch Spark reports rows, watermark and state, and the counts of `outcomes` (see
`OBSERVATION`). A `StreamMeter` adds them to the checkpoint's counts at the start. The server runs
in a thread with an event loop of its own.

    GET /metrics    for Prometheus
    GET /           the page
"""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from pyspark.sql import SparkSession

from purgatory._local import refusal
from purgatory.metrics import Meter, StreamMeter
from purgatory.pipeline.streaming._checkpoint import reconcile
from purgatory.pipeline.streaming._outcomes import OBSERVATION
from purgatory.pipeline.streaming._rows import COUNTS
from purgatory.pipeline.streaming._timekeeper import metrics

SHUTDOWN_TIMEOUT: Final = 5.0
"""Seconds for the server to stop."""


def meter_of(name: str, spark: SparkSession, checkpoint: str) -> StreamMeter:
    """A meter of a stream that continues from a checkpoint, or starts one."""
    try:
        known = reconcile(checkpoint, spark)
    except ValueError:
        return StreamMeter(name)
    counts = {name: getattr(known, name) for name in ("registered", "completed", "expired", "late")}
    return StreamMeter(name, **counts)


def update_meter(meter: StreamMeter, progress: Any) -> None:
    """Adds a batch to `meter`, from Spark's progress of the query."""
    state = progress["stateOperators"][0]
    counted = progress["observedMetrics"].get(OBSERVATION)
    watermark = progress["eventTime"].get("watermark")
    instant = datetime.fromisoformat(watermark).timestamp() if watermark else 0.0
    meter.batch_ended(
        rows=sum(source["numInputRows"] for source in progress["sources"]),
        seconds=progress["durationMs"]["triggerExecution"] / 1000,
        watermark=instant or None,
        state_rows=state["numRowsTotal"],
        state_bytes=state["memoryUsedBytes"],
        **({name: metrics(counted)[name] or 0 for name in COUNTS} if counted else {}),
    )


@contextmanager
def dashboard(meter: StreamMeter, where: tuple[str, int]) -> Iterator[str]:
    """Serves the page and the metrics while the block runs, and gives their URL.

    Args:
        where: the host and the port; 0 for any free port.

    Raises:
        OSError: the port is taken.
    """
    # Imported here, since other programs start sooner without them.
    import uvicorn  # noqa: PLC0415
    from prometheus_client import CollectorRegistry, make_asgi_app  # noqa: PLC0415

    from purgatory.console import console  # noqa: PLC0415
    from purgatory.metrics.prometheus import collector  # noqa: PLC0415

    try:
        listening = socket.create_server(
            where, family=socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        )
    except OSError as error:
        raise OSError(f"cannot serve on {where[0]}:{where[1]}: {error.strerror}") from error
    registry = CollectorRegistry()
    registry.register(collector(Meter(), stream=meter))
    metrics, page = make_asgi_app(registry), console(stream=meter)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        is_for_metrics = scope["path"] == "/metrics" and not refusal(scope)
        answer = metrics if is_for_metrics else page  # which refuses the rest
        await answer(scope, receive, send)

    quiet: dict[str, Any] = {"log_config": None, "log_level": "critical"}
    plain: dict[str, Any] = {"lifespan": "off", "ws": "none", "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(application, **quiet, **plain))
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve([listening])), name="dashboard", daemon=True
    )
    thread.start()
    try:
        host, port = listening.getsockname()[:2]
        yield f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
    finally:
        meter.ended()
        server.should_exit = True
        thread.join(SHUTDOWN_TIMEOUT)
        listening.close()
