"""Every metric that the alerts and the Grafana dashboard name is one that the library exports."""

import asyncio
import json
import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from readme_blocks import ROOT, blocks

from purgatory import Purgatory
from purgatory.asgi import LongPolls
from purgatory.metrics import Meter
from purgatory.metrics.prometheus import collector
from purgatory.relay import Relay
from purgatory.testing import VirtualTimeLoop

GUIDE = ROOT / ".docs" / "guide"
ENDINGS = re.compile(r'ending="(\w+)"')
NAME = re.compile(r"\bpurgatory_\w+")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    async def main() -> str:
        meter = Meter()
        jobs, polls = Purgatory("jobs", observer=meter), LongPolls(max_wait=60, observer=meter)
        async with Relay(f"file://{tmp_path_factory.mktemp('relay')}") as relay:
            registry = CollectorRegistry()
            registry.register(collector(meter, purgatories=jobs, polls=polls, relay=relay))
            await jobs.wait_for(lambda: jobs.pending, ["key"], timeout=1)  # a missed trigger
            return generate_latest(registry).decode()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main())


def expressions() -> list[str]:
    [rules] = blocks(GUIDE / "alerts.md", "yaml")
    dashboard = json.loads((GUIDE / "grafana.json").read_text("utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [*re.findall(r"expr: (.*)", rules.text), *asked]


@pytest.mark.parametrize("expression", expressions())
def test_metric_of_an_alert_or_panel_is_exported(expression: str, exported: str) -> None:
    names = NAME.findall(expression)
    assert names
    assert [name for name in names if name not in set(NAME.findall(exported))] == []
    for ending in ENDINGS.findall(expression):
        assert f'ending="{ending}"' in exported
