"""Pictures of a page, and the rules of accessibility that it breaks."""

from __future__ import annotations

import json
from pathlib import Path

from braid_lab.process import LabError
from braid_lab.product import repository
from braid_lab.programs.devtools import Tab

AXE = repository() / ".tools/axe/axe_playwright_python/axe.min.js"
SCHEMES = ("light", "dark")
#: Widths and heights of a desk and of a telephone.
WINDOWS = {"wide": (1280, 900), "narrow": (390, 844)}
#: The sentence on top of a page.
SENTENCE = "document.querySelector('#sentence').textContent"
#: The charts are drawn for the window's present size.
DRAWN = (
    "[...document.querySelectorAll('figure svg, .spark')]"
    ".every((svg) => svg.viewBox.baseVal.width === svg.clientWidth)"
)


def violations(tab: Tab) -> list[str]:
    """Return the rules of axe-core that a page breaks, each with the first place."""
    tab.evaluate(AXE.read_text() + "; 0")
    found = json.loads(
        tab.evaluate("axe.run().then(({violations}) => JSON.stringify(violations))"),
    )
    return [f"{each['id']}: {each['help']}: {each['nodes'][0]['html']}" for each in found]


class Album:
    """Pictures of a page, wide and narrow, light and dark, and the rules of accessibility that it breaks in each."""

    def __init__(self, tab: Tab, folder: Path) -> None:
        """Take pictures of `tab` into `folder`."""
        self.tab = tab
        self.folder = folder
        self.broken: dict[str, list[str]] = {}

    def photograph(self, name: str) -> None:
        """Take the pictures of the page as it is."""
        for scheme in SCHEMES:
            for window, (width, height) in WINDOWS.items():
                self.tab.look(width, height, scheme)
                self.tab.evaluate("scrollTo({top: 0, behavior: 'instant'})")
                # The next snapshot draws the charts for this window.
                self.tab.wait(DRAWN)
                file = f"{name}-{window}-{scheme}"
                if found := violations(self.tab):
                    self.broken[file] = found
                self.tab.screenshot(self.folder / f"{file}.png")
                wide = self.tab.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    raise LabError(f"{file} is {wide} pixels wide")
