"""Pages that poll, in Node: a proxy that drops tags has each poll answered at once."""

import json
import re
import subprocess

import pytest
from readme_blocks import ROOT
from requirements import need

PAGES = [".docs/cookbook/browser.md", "examples/long_poll_board.html"]
PAGE = """
let answers = 0;
const waits = [];
globalThis.document = { getElementById: () => ({ addEventListener() {} }) };
globalThis.location = { search: "" };
globalThis.setTimeout = (next, milliseconds) => { waits.push(milliseconds); queueMicrotask(next); };
globalThis.fetch = async () => {
  if (answers === 5) { console.log(JSON.stringify(waits)); process.exit(); }
  answers += 1;
  return { status: 200, ok: true, headers: new Headers(), json: async () => ({ state: "new", messages: [] }) };
};
"""


@pytest.mark.parametrize("path", PAGES)
def test_page_pauses_between_answers_that_bring_nothing(path: str) -> None:
    node = need("node", "needs Node: apt-get install nodejs")
    text = (ROOT / path).read_text(encoding="utf-8")
    [script] = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    ended = subprocess.run(
        [node, "-"], input=PAGE + script, capture_output=True, text=True, timeout=60, check=True
    )
    pauses = json.loads(ended.stdout)
    assert len(pauses) == 5 and min(pauses) >= 100, pauses
