"""The page about metrics: its Python blocks run and print the output shown, and it names all
metrics."""

import re

from prometheus_client import REGISTRY
from readme_blocks import ROOT, blocks, session

from purgatory import Purgatory
from purgatory.asgi import LongPolls
from purgatory.metrics import Meter, StreamMeter
from purgatory.metrics.prometheus import collector
from purgatory.relay import Relay

PAGE = ROOT / "purgatory" / "metrics" / "README.md"


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


def test_every_metric_stands_in_the_table(tmp_path):
    shown = {
        "purgatories": Purgatory(),
        "polls": LongPolls(signals=()),
        "relay": Relay(f"file://{tmp_path}"),
    }
    collected = collector(Meter(), **shown, stream=StreamMeter("orders")).collect()
    names = {metric.name + "_total" * (metric.type == "counter") for metric in collected}
    table = set(
        re.findall(r"`(purgatory_\w+)`", PAGE.read_text(encoding="utf-8").partition("## Where")[0])
    )
    of_others = {name for name in names if "relay" in name or "stream" in name}
    examples = {"purgatory_relay_connected", "purgatory_stream_rows_total"}
    assert (
        names - of_others | examples | {"purgatory_poll_waits_total"} == table
    )  # that is there once a poll has ended
