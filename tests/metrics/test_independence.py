"""Metrics and traces use public names alone: they work on a purgatory whose private names have
changed."""

import re
from pathlib import Path

import pytest
from renamed import beside_a_renamed_core

import purgatory as package
import purgatory.metrics.otel
import purgatory.metrics.prometheus

PROGRAM = """
import asyncio
from prometheus_client import CollectorRegistry, generate_latest
from purgatory import Purgatory, ThresholdPurgatory
from purgatory.metrics import Meter
from purgatory.metrics.otel import Spans, observe
from purgatory.metrics.prometheus import collector

async def main():
    meter, registry, values = Meter(), CollectorRegistry(), {}
    versions = ThresholdPurgatory("versions", observer=meter)
    async with Purgatory("renamed", observer=[meter, Spans()]) as purgatory:
        registry.register(collector(meter, purgatories=purgatory, thresholds=versions))
        observe(meter, purgatories=purgatory)
        waiting = asyncio.create_task(purgatory.wait_for(lambda: values.get("a"), ["a"], 30))
        await asyncio.sleep(0)
        values["a"] = 1
        purgatory.check_and_complete("a")
        await waiting
        versions.advance("b", 1)
        await versions.wait("b", 1)
        [last] = [line for line in generate_latest(registry).decode().splitlines() if line.startswith("purgatory_keys{")][:1]
    print(last, [(kind.purgatory, kind.kind, kind.ended) for kind in meter.snapshot()])

asyncio.run(main())
"""


def test_metrics_work_without_private_names(tmp_path):
    assert beside_a_renamed_core(tmp_path, PROGRAM, "metrics") == (
        "purgatory_keys{purgatory=\"renamed\"} 0.0 [('renamed', 'Condition', 1), ('versions', "
        "'wait', 1)]\n"
    )


def test_metrics_use_no_private_name():
    for path in (Path(package.__file__).parent / "metrics").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        # Which Host is local is one rule for all servers, and nothing of a purgatory.
        assert not re.search(r"(from|import) purgatory\._(?!local )", text), path.name
        assert not re.search(r"\._(op_|wheel|engine)", text), path.name


def test_importing_the_meter_imports_no_extra(program):
    code = (
        "import purgatory.metrics, sys; print({'prometheus_client', 'opentelemetry'} & "
        "set(sys.modules))"
    )
    assert program("-c", code).stdout == "set()\n"


@pytest.mark.parametrize(
    "module", [purgatory.metrics, purgatory.metrics.otel, purgatory.metrics.prometheus]
)
def test_public_classes_are_documented_and_final(module):
    names = getattr(module, "__all__", ["collector", "serve"])
    assert names == sorted(names)
    for name in names:
        value = getattr(module, name)
        assert value.__doc__
        assert getattr(value, "__final__", not isinstance(value, type)), f"{name} is not @final"
