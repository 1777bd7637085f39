"""One HTML page of all results: the papers' figures beside ours, with all plots inline and no external links."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from braid_lab.paper_figures import index

TEMPLATES = Path(__file__).parent / "templates"


def write(out: Path) -> bool:
    """Write OUT/report.html from every valid result.json below `out`; False if there is none."""
    loaded = [_load(path) for path in sorted(out.rglob("result.json"))]
    results = [each for each in loaded if each["form"] != "smoke"]
    if not results:
        return False
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["number"] = number
    page = environment.get_template("report.html.j2").render(results=results, index=index(results))
    (out / "report.html").write_text(page)
    return True


def _load(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = {"form": "full", "failed": []} | json.loads(path.read_text())
    result["plots"] = [_inline(path.parent / f"{name}.svg") for name in result.get("plots", [])]
    return result


def _inline(plot: Path) -> Markup:
    """Return an SVG as an element of the page: without XML prologue, and with ids unique within the page."""
    text = plot.read_text()
    text = text[text.index("<svg") :]
    own = f"{plot.parent.name}-{plot.stem}-"
    text = re.sub(r'(\bid="|url\(#|href="#)', lambda match: match.group(1) + own, text)
    # matplotlib's metadata, with links to vocabularies, is useless on the page.
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return Markup(text)  # noqa: S704


def number(value: float | None) -> str:
    """Return a figure with a sensible number of digits."""
    if value is None:
        return "\N{EN DASH}"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
