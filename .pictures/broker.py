"""Draws `examples/broker/produce.svg`: one produce request with acks=all, as it goes through the broker.

python .pictures/broker.py
"""

from pathlib import Path

WIDTH, HEIGHT, TOP, BOTTOM = 900, 484, 62, 468
LANES = {
    "producer": (70, ""),
    "log": (245, "orders, partition 0"),
    "one": (395, "node 1"),
    "two": (475, "node 2"),
    "produce": (600, "produce"),
    "fetch": (716, "fetch"),
    "consumer": (838, ""),
}
STYLE = """
  text { font: 14px ui-sans-serif, system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: var(--ink); }
  .soft { fill: var(--soft); font-size: 12.5px; }
  .head { font-weight: 600; }
  .code { font: 12.5px ui-monospace, 'SFMono-Regular', 'DejaVu Sans Mono', monospace; }
  .lane { stroke: var(--line); stroke-dasharray: 2 5; }
  .arrow { stroke: var(--blue); stroke-width: 1.8; fill: none; marker-end: url(#blue); }
  .answer { stroke: var(--green); stroke-width: 1.8; fill: none; marker-end: url(#green); }
  .wait { fill: var(--blue); opacity: .22; }
  .edge { stroke: var(--blue); stroke-width: 2; }
  .done { fill: var(--green); }
  .room { fill: var(--fill); stroke: var(--line); }
  svg { --ink: #1f2328; --soft: #59636e; --line: #b9c2cc; --fill: #f3f6fa; --blue: #3b6fd4; --green: #1a7f4b; --page: #ffffff; }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #e6edf3; --soft: #9aa6b2; --line: #4a5462; --fill: #171c24; --blue: #79a8ff; --green: #4ac98a;
          --page: #0d1117; }
  }
"""


def at(lane: str) -> int:
    """Where a lane is."""
    return LANES[lane][0]


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Words at a place."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}">{words}</text>'


def arrow(start: str, end: str, y: int, words: str, kind: str = "arrow", drop: int = 0) -> str:
    """From one lane to another, with words above it; it arrives `drop` lower."""
    a, b = at(start), at(end)
    a, b = (a + 5, b - 6) if a < b else (a - 5, b + 6)
    return f'<path class="{kind}" d="M{a} {y} L{b} {y + drop}"/>' + text((a + b) / 2, y - 7 + drop / 2, words, "soft")


def wait(lane: str, start: int, end: int) -> str:
    """An operation that waits, and is completed."""
    x = at(lane)
    return (
        f'<rect class="wait" x="{x - 7}" y="{start}" width="14" height="{end - start}" rx="3"/>'
        f'<path class="edge" d="M{x - 7} {start} h14"/><circle class="done" cx="{x}" cy="{end}" r="5.5"/>'
    )


def box(x: int, y: int, width: int, lines: list[tuple[str, str]]) -> str:
    """Lines of words with a frame."""
    height = 10 + 17 * len(lines)
    words = "".join(text(x + width / 2, y + 18 + 17 * number, line, kind) for number, (line, kind) in enumerate(lines))
    return f'<rect class="room" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>{words}'


def picture() -> str:
    """The whole of it."""
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="var(--page)"/>']
    parts.append('<rect class="room" x="160" y="10" width="608" height="464" rx="8"/>')
    parts.append(text(245, 32, "log, node 0", "head") + text(435, 32, "followers (simulated)", "head"))
    parts.append(text(658, 32, "purgatories", "head"))
    for name, (x, label) in LANES.items():
        parts.append(f'<path class="lane" d="M{x} {TOP} V{BOTTOM}"/>')
        parts.append(text(x, 52, label, "soft") if label else text(x, 42, name, "head"))
    parts += [
        arrow("consumer", "fetch", 92, "Fetch from 41"),
        wait("fetch", 92, 380),
        arrow("producer", "log", 132, "Produce, acks=all"),
        box(176, 142, 138, [("append at 41", ""), ("high watermark 41", "soft")]),
        arrow("log", "produce", 214, "tried: not yet; it waits under ('orders', 0)"),
        wait("produce", 214, 412),
        arrow("log", "one", 238, "lag", drop=14),
        arrow("one", "log", 272, "has 41", "answer"),
        arrow("log", "two", 278, "", drop=14),
        arrow("two", "log", 306, "has 41", "answer"),
        box(176, 316, 138, [("all have 41", ""), ("high watermark 42", "soft")]),
        arrow("log", "fetch", 380, "1. check fetch"),
        arrow("fetch", "consumer", 392, "record 41", "answer"),
        arrow("log", "produce", 412, "2. check produce"),
        f'<path class="answer" d="M{at("produce") - 5} 430 L{at("producer") + 6} 430"/>',
        text(116, 423, "offset 41", "soft"),
        text(at("log") + 8, 454, "3. check delete records: nobody waits", "soft", "start"),
    ]
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="var(--{name})"/></marker>'
        for name in ("blue", "green")
    )
    label = "A produce request with acks=all waits in a purgatory until both followers have the record"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{label}">\n<style>{STYLE}</style>\n<defs>{heads}</defs>\n' + "\n".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    (Path(__file__).parents[1] / "examples" / "broker" / "produce.svg").write_text(picture())
