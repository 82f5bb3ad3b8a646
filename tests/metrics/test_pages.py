"""The page about metrics, whose blocks run and print the output shown, and which names all metrics;
the alerts and the Grafana dashboard, which ask for metrics that the library exports."""

import asyncio
import json
import re

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from readme_blocks import ROOT, blocks, session

from purgatory import Purgatory
from purgatory.asgi import LongPolls
from purgatory.metrics import Meter, StreamMeter
from purgatory.metrics.prometheus import collector
from purgatory.relay import Relay
from purgatory.testing import VirtualTimeLoop

PAGE = ROOT / "purgatory" / "metrics" / "README.md"
GUIDE = ROOT / ".docs" / "guide"
NAME = re.compile(r"\bpurgatory_\w+")


def test_blocks_print_what_their_comments_show(monkeypatch):
    registered = []
    monkeypatch.setattr(REGISTRY, "register", registered.append)
    with session(PAGE) as running:
        try:
            for block in blocks(PAGE, "python"):
                assert running.run(block) == block.printed, f"line {block.line}"
        finally:
            if "server" in running.names:
                running.names["server"].shutdown()
                running.names["server"].server_close()
    assert len(registered) == 1


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The text of a registry with everything."""

    async def main():
        meter = Meter()
        jobs, polls = Purgatory("jobs", observer=meter), LongPolls(signals=(), observer=meter)
        async with Relay(f"file://{tmp_path_factory.mktemp('relay')}", timeout=60) as relay:
            shown = {"purgatories": jobs, "polls": polls, "relay": relay}
            registry = CollectorRegistry()
            registry.register(collector(meter, **shown, stream=StreamMeter("orders")))
            await jobs.wait_for(lambda: jobs.pending, ["key"], timeout=1)  # a missed trigger
            return generate_latest(registry).decode()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main())


def test_every_metric_stands_in_the_table(exported):
    names = {*re.findall(r"^# HELP (\w+)", exported, re.MULTILINE)}
    table = PAGE.read_text(encoding="utf-8").partition("## Where")[0]
    of_others = {name for name in names if "relay" in name or "stream" in name}
    examples = {"purgatory_relay_connected", "purgatory_stream_rows_total"}
    of_polls = {"purgatory_poll_waits_total"}  # once a poll has ended
    assert names - of_others | examples | of_polls == {*re.findall(r"`(purgatory_\w+)`", table)}


def expressions():
    [rules] = blocks(GUIDE / "alerts.md", "yaml")
    dashboard = json.loads((GUIDE / "grafana.json").read_text("utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [*re.findall(r"expr: (.*)", rules.text), *asked]


@pytest.mark.parametrize("expression", expressions())
def test_metric_of_an_alert_or_panel_is_exported(expression, exported):
    names = {*NAME.findall(expression)}
    assert names and names <= {*NAME.findall(exported)}
    for ending in re.findall(r'ending="\w+"', expression):
        assert ending in exported
