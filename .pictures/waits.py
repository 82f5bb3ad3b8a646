"""Draws `waits-light.svg` and `waits-dark.svg`: keys, those who wait under them, and the wheel that keeps their deadlines.

    python .pictures/waits.py

The hand turns once in 24 seconds, one bucket a second, and the operations of the bucket that it reaches expire; twice in a
round the key `tea` is checked, and its operations are answered. Where motion is not wanted, the pictures stand still.
"""

from math import cos, pi, sin
from pathlib import Path

WIDTH, HEIGHT = 900, 340
CENTRE = (735.0, 172.0)
ROUND = 24  # seconds, and buckets of the inner ring
WIDE = 12  # buckets of the outer ring
INNER, OUTER = (66.0, 96.0), (102.0, 132.0)  # radii of the rings
KEYS = {"tea": 82.0, "order-42": 172.0, "user-7": 262.0}
# Under each key, in the order in which they came: the bucket of each operation, of the inner or the outer ring.
WAITS = {
    "tea": (("inner", 20), ("inner", 22), ("outer", 10)),
    "order-42": (("outer", 8), ("inner", 17), ("outer", 0), ("inner", 3)),
    "user-7": (("inner", 13), ("outer", 6), ("inner", 15), ("outer", 4), ("inner", 9)),
}

THEMES = {
    "light": {
        "ink": "#1f2328", "soft": "#59636e", "line": "#c4ccd6", "fill": "#f3f6fa", "band": "#e4eaf2",
        "wait": "#3b6fd4", "key": "#1a7f4b", "time": "#c2410c",
    },
    "dark": {
        "ink": "#e6edf3", "soft": "#9aa6b2", "line": "#3d4652", "fill": "#171c24", "band": "#232b36",
        "wait": "#79a8ff", "key": "#4ac98a", "time": "#ff9d5c",
    },
}  # fmt: skip

STYLE = """
  text {{ font: 15px ui-sans-serif, system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: {ink}; }}
  .code {{ font: 600 15px ui-monospace, 'SFMono-Regular', 'DejaVu Sans Mono', monospace; }}
  .soft {{ fill: {soft}; font-size: 13px; }}
  .green {{ fill: {key}; }}
  .amber {{ fill: {time}; }}
  .bucket {{ fill: {fill}; stroke: {line}; }}
  .used {{ fill: {band}; }}
  .link {{ fill: none; stroke: {wait}; stroke-width: 1.2; opacity: .38; }}
  .wait {{ fill: {wait}; }}
  .pill {{ fill: {band}; stroke: {line}; }}
  .arrow {{ fill: none; stroke: {key}; stroke-width: 2.5; }}
  circle.tea {{ fill: {key}; animation: answered 12s infinite; }}
  path.tea {{ stroke: {key}; animation: gone 12s infinite; }}
  circle.due {{ animation: due 24s infinite; }}
  path.due {{ animation: left 24s infinite; }}
  .hand {{ animation: turn 24s steps(24) infinite; transform-origin: {x}px {y}px; }}
  @keyframes turn {{ to {{ transform: rotate(360deg); }} }}
  @keyframes answered {{
    0%, 8% {{ fill: {key}; opacity: 1; }} 13%, 50% {{ opacity: 0; }}
    51% {{ fill: {wait}; }} 58%, 99% {{ fill: {wait}; opacity: 1; }}
  }}
  @keyframes gone {{
    0%, 8% {{ stroke: {key}; opacity: .6; }} 13%, 50% {{ opacity: 0; }}
    51% {{ stroke: {wait}; }} 58%, 99% {{ stroke: {wait}; opacity: .38; }}
  }}
  @keyframes left {{ 0%, 4% {{ opacity: .38; }} 7%, 41% {{ opacity: 0; }} 46%, 100% {{ opacity: .38; }} }}
  @keyframes due {{
    0%, 4% {{ fill: {time}; opacity: 1; }} 7%, 40% {{ opacity: 0; }}
    41% {{ fill: {wait}; }} 46%, 100% {{ fill: {wait}; opacity: 1; }}
  }}
  @media (prefers-reduced-motion: reduce) {{ * {{ animation: none !important; }} }}
"""


def on_ring(turn: float, radius: float) -> tuple[float, float]:
    """The point at so many turns, clockwise from the top."""
    return CENTRE[0] + radius * sin(2 * pi * turn), CENTRE[1] - radius * cos(2 * pi * turn)


def bucket_of(ring: str, number: int) -> tuple[float, tuple[float, float]]:
    """Where a bucket begins, in turns, and the middle of it."""
    count, (low, high) = (ROUND, INNER) if ring == "inner" else (WIDE, OUTER)
    return number / count, on_ring((number + 0.5) / count, (low + high) / 2)


def buckets(ring: str) -> list[str]:
    """The buckets of a ring, those in use in another colour."""
    count, (low, high) = (ROUND, INNER) if ring == "inner" else (WIDE, OUTER)
    used = {number for waits in WAITS.values() for where, number in waits if where == ring}
    drawn = []
    for number in range(count):
        ends = (number + 0.06) / count, (number + 0.94) / count
        (ax, ay), (bx, by) = (on_ring(end, high) for end in ends)
        (cx, cy), (dx, dy) = (on_ring(end, low) for end in reversed(ends))
        there = f"M{ax:.1f} {ay:.1f} A{high} {high} 0 0 1 {bx:.1f} {by:.1f}"
        path = f"{there} L{cx:.1f} {cy:.1f} A{low} {low} 0 0 0 {dx:.1f} {dy:.1f} Z"
        drawn.append(f'<path class="bucket{" used" if number in used else ""}" d="{path}"/>')
    return drawn


def waits() -> list[str]:
    """The operations: under their keys in the order in which they came, and in their buckets, with a line between."""
    links, dots = [], []
    for key, buckets_of_key in WAITS.items():
        for place, (ring, number) in enumerate(buckets_of_key):
            x, y = 362 + 30 * place, KEYS[key]
            begins, (bx, by) = bucket_of(ring, number)
            tea, due = " tea" if key == "tea" else "", ""
            if ring == "inner" and not tea:
                due = f' due" style="animation-delay:{begins * ROUND:.0f}s'
            path = f"M{x} {y} C{x + 120} {y:.0f} {bx - 100:.0f} {by:.0f} {bx:.1f} {by:.1f}"
            links.append(f'<path class="link{tea}{due}" d="{path}"/>')
            dots.append(f'<circle class="wait{tea}{due}" cx="{x}" cy="{y}" r="9"/>')
            dots.append(f'<circle class="wait{tea}{due}" cx="{bx:.1f}" cy="{by:.1f}" r="6.5"/>')
    return links + dots


def picture(theme: str) -> str:
    """One picture as SVG."""
    x, y = CENTRE
    hand_x, hand_y = on_ring(0.5 / ROUND, INNER[0] - 6)
    parts = [
        '<text class="code green" x="24" y="46">check_and_complete("tea")</text>',
        '<text class="soft" x="24" y="66">from a handler or a task</text>',
        '<path class="arrow" d="M24 82 H242" marker-end="url(#head)"/>',
        '<text class="soft" x="24" y="164">those who wait under a key</text>',
        '<text class="soft" x="24" y="182">are tried in the order in</text>',
        '<text class="soft" x="24" y="200">which they came; each is</text>',
        '<text class="soft" x="24" y="218">answered exactly once, and</text>',
        '<text class="soft" x="24" y="236">leaves key and wheel at once</text>',
    ]
    for key, at in KEYS.items():
        parts.append(f'<rect class="pill" x="252" y="{at - 16}" width="92" height="32" rx="16"/>')
        parts.append(f'<text class="code" x="298" y="{at + 5}" text-anchor="middle">{key}</text>')
    parts += [*buckets("outer"), *buckets("inner"), *waits()]
    parts += [
        f'<g class="hand"><path d="M{x} {y} L{hand_x:.1f} {hand_y:.1f}" class="arrow" style="stroke: var(--time)"/></g>',
        f'<circle cx="{x}" cy="{y}" r="5" style="fill: var(--time)"/>',
        f'<text class="code amber" x="{x}" y="{y + 28}" text-anchor="middle">now</text>',
        f'<text class="soft" x="298" y="{HEIGHT - 14}" text-anchor="middle">keys</text>',
        f'<text class="soft" x="422" y="{HEIGHT - 14}" text-anchor="middle">operations</text>',
        f'<text class="soft" x="{x}" y="{HEIGHT - 14}" text-anchor="middle">deadlines: one timer per bucket in use</text>',
    ]
    colours = THEMES[theme]
    head = '<marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="5" markerHeight="5" orient="auto">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"',
            '  role="img" aria-label="Operations wait under keys and in the buckets of a timing wheel"',
            f'  style="--time: {colours["time"]}">',
            f"<style>{STYLE.format(**colours, x=x, y=y)}</style>",
            f'<defs>{head}<path d="M0 0 L8 4 L0 8 Z" fill="{colours["key"]}"/></marker></defs>',
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    for name in THEMES:
        Path(__file__).with_name(f"waits-{name}.svg").write_text(picture(name), encoding="utf-8")
