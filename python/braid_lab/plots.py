"""Style of our plots: quiet axes, and constant colours for the two uplinks and Braid."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colours that colour-blind readers can distinguish (Okabe and Ito).
COLOURS = {
    "dsl": "#0072b2",
    "lte": "#e69f00",
    "rr": "#999999",
    "wrr": "#009e73",
    "wrr_openflow": "#d55e00",
    "race": "#d55e00",
    "least-loaded": "#cc79a7",
    "fastest": "#56b4e9",
    "paper": "#cc79a7",
    "single": "#444444",
    "mptcp": "#e69f00",
    "bond": "#0072b2",
    "asked": "#999999",
}


def new(width: float, height: float) -> Figure:
    """Return an empty plot, `width` by `height` inches."""
    # Slow to load, and not needed by `list`, `shell` and `clean`.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.use("Agg")
    mpl.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "legend.frameon": False,
            # Text stays text in the SVG: smaller, searchable, and the same on every machine.
            "svg.fonttype": "none",
            # Element ids from a fixed salt, so that equal data give equal files.
            "svg.hashsalt": "braid",
        }
    )
    return Figure(figsize=(width, height), dpi=110, layout="constrained")
