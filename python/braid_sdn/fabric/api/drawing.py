"""Draws the network as SVG: switches, links with latency and load, paths with their shares.

A link's two directions lie side by side, each as wide as its load is of its capacity; the paths of pairs are drawn
over them, as wide as their share. The same network is always drawn the same way.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import Any

#: Colours that stay apart for colour-blind readers (Okabe and Ito), one a pair.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
WIDTH, HEIGHT, MARGIN = 960, 640, 70

#: Pairs that are drawn; more would hide one another.
MAX_DRAWN_PAIRS = 6

#: More switches than this are drawn as dots without words.
MAX_LABELLED_SWITCHES = 60

Point = tuple[float, float]


def svg(status: dict[str, Any], paths: dict[str, Any]) -> str:
    """Draw the output of `report.status` and `report.paths`."""
    names = [switch["name"] for switch in status["switches"]]
    ends = {name for link in status["links"] for name in (link["source_switch"], link["target_switch"])}
    places = layout(sorted({*names, *ends}), [(a["source_switch"], a["target_switch"]) for a in status["links"]])
    wordy = len(places) <= MAX_LABELLED_SWITCHES
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="11"><rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *(part for link in status["links"] for part in _link(link, places, wordy=wordy)),
        *_paths(paths["pairs"][:MAX_DRAWN_PAIRS], places),
        *(part for name, at in places.items() for part in _switch(name, at, name in names, wordy=wordy)),
        *_hosts(status, places, wordy=wordy),
        *_legend(paths["pairs"][:MAX_DRAWN_PAIRS], len(paths["pairs"])),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def layout(names: list[str], links: Iterable[tuple[str, str]]) -> dict[str, Point]:
    """Place switches by the algorithm of Fruchterman and Reingold, from a circle; deterministic."""
    count = len(names)
    if not count:
        return {}
    at = {
        name: (math.cos(2 * math.pi * number / count), math.sin(2 * math.pi * number / count))
        for number, name in enumerate(names)
    }
    near = {tuple(sorted(link)) for link in links}
    ideal = 1.2 / math.sqrt(count)
    # Large networks are hardly better for more rounds, and each takes a while.
    rounds = 120 if count <= MAX_LABELLED_SWITCHES else max(4, 200_000 // count**2)
    for turn in range(rounds):
        step = 0.15 * (1 - turn / rounds)
        push = {name: [0.0, 0.0] for name in names}
        for number, one in enumerate(names):
            for other in names[number + 1 :]:
                dx, dy = at[one][0] - at[other][0], at[one][1] - at[other][1]
                apart = max(1e-3, math.hypot(dx, dy))
                force = ideal**2 / apart - (apart**2 / ideal if (one, other) in near else 0.0)
                for name, sign in ((one, 1), (other, -1)):
                    push[name][0] += sign * force * dx / apart
                    push[name][1] += sign * force * dy / apart
        for name, (fx, fy) in push.items():
            much = max(1e-9, math.hypot(fx, fy))
            at[name] = (at[name][0] + fx / much * min(much, step), at[name][1] + fy / much * min(much, step))
    return _fit(at)


def _fit(at: dict[str, Point]) -> dict[str, Point]:
    spans = []
    for axis, size in ((0, WIDTH), (1, HEIGHT)):
        values = [point[axis] for point in at.values()]
        low, span = min(values), max(max(values) - min(values), 1e-9)
        spans.append((low, (size - 2 * MARGIN) / span))
    return {
        name: (MARGIN + (x - spans[0][0]) * spans[0][1], MARGIN + (y - spans[1][0]) * spans[1][1])
        for name, (x, y) in at.items()
    }


def _beside(one: Point, other: Point, distance: float) -> tuple[Point, Point]:
    """Return a line moved to its right."""
    dx, dy = other[0] - one[0], other[1] - one[1]
    length = max(1e-9, math.hypot(dx, dy))
    ox, oy = -dy / length * distance, dx / length * distance
    return (one[0] + ox, one[1] + oy), (other[0] + ox, other[1] + oy)


def _line(one: Point, other: Point, colour: str, width: float, **more: str) -> str:
    extra = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    return (
        f'<line x1="{one[0]:.1f}" y1="{one[1]:.1f}" x2="{other[0]:.1f}" y2="{other[1]:.1f}" '
        f'stroke="{colour}" stroke-width="{width:.1f}"{extra}'
    )


def _link(link: dict[str, Any], places: dict[str, Point], *, wordy: bool) -> list[str]:
    """Draw one direction: grey, as wide as a full link; on it dark, as wide as its load."""
    one, other = _beside(places[link["source_switch"]], places[link["target_switch"]], 3.0)
    load = min(1.0, link["used_bit_s"] / link["capacity_bit_s"]) if link["capacity_bit_s"] else 1.0
    words = (
        f"{link['source']} → {link['target']}: {rate(link['used_bit_s'])} of {rate(link['capacity_bit_s'])}, "
        f"{link['latency_ms']:g} ms"
    )
    if link["frame_bytes"] is not None:
        words += f", packets of {link['frame_bytes']} bytes"
    title = f"><title>{html.escape(words)}</title></line>"
    parts = [_line(one, other, "#dddddd", 5.0) + title]
    if load >= 0.01:
        parts.append(_line(one, other, "#c33c3c" if load > 0.9 else "#777777", max(1.0, 5.0 * load)) + "/>")
    if wordy and link["source_switch"] < link["target_switch"]:
        x, y = (one[0] + other[0]) / 2, (one[1] + other[1]) / 2
        text = f"{link['latency_ms']:.1f} ms, {100 * load:.0f} % of {rate(link['capacity_bit_s'])}"
        parts.append(f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle" fill="#555555">{text}</text>')
    return parts


def _paths(pairs: list[dict[str, Any]], places: dict[str, Point]) -> list[str]:
    parts = []
    for number, pair in enumerate(pairs):
        for path in pair["paths"]:
            for one, other in zip(path["switches"], path["switches"][1:], strict=False):
                if one in places and other in places:
                    line = _beside(places[one], places[other], 8.0 + 3.0 * number)
                    parts.append(
                        _line(*line, COLOURS[number], 0.5 + 3.0 * path["share"], stroke_opacity="0.8") + "/>"
                    )
    return parts


def _switch(name: str, at: Point, connected: bool, *, wordy: bool) -> list[str]:
    colour = "#333333" if connected else "#c33c3c"
    if not wordy:
        return [f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3" fill="{colour}"/>']
    return [
        f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="16" fill="#ffffff" stroke="{colour}" stroke-width="2"/>',
        f'<text x="{at[0]:.1f}" y="{at[1] + 4:.1f}" text-anchor="middle">{html.escape(name[-6:])}</text>',
    ]


def _hosts(status: dict[str, Any], places: dict[str, Point], *, wordy: bool) -> list[str]:
    if not wordy:
        return []
    count: dict[str, int] = {}
    for host in status["hosts"]:
        count[host["switch"]] = count.get(host["switch"], 0) + 1
    return [
        f'<text x="{places[name][0]:.1f}" y="{places[name][1] + 30:.1f}" text-anchor="middle" fill="#555555">'
        f"{number} host{'s' if number > 1 else ''}</text>"
        for name, number in count.items()
        if name in places
    ]


def _legend(pairs: list[dict[str, Any]], whole: int) -> list[str]:
    parts = []
    for number, pair in enumerate(pairs):
        shares = " + ".join(f"{100 * path['share']:.0f} %" for path in pair["paths"])
        words = f"{pair['source']} → {pair['target']}: {shares}, {rate(pair['capacity_bit_s'])}, {pair['order']}"
        y = 16 + 15 * number
        parts.append(f'<text x="10" y="{y}" fill="{COLOURS[number]}">{html.escape(words)}</text>')
    if whole > len(pairs):
        parts.append(f'<text x="10" y="{16 + 15 * len(pairs)}" fill="#555555">and {whole - len(pairs)} more</text>')
    return parts


def rate(bits: float) -> str:
    """Return a rate for people."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits:.0f} bit/s"
