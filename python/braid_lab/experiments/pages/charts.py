"""Charts of page load times after the paper's: distributions and bars, with the paper's values beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braid_lab.experiment import Run
from braid_lab.plots import COLOURS

#: Patterns beside the colours: what differs by colour alone is lost in black and white.
LINESTYLES = {
    "single": "-",
    "mptcp": ":",
    "wrr": "--",
    "wrr_openflow": (0, (1, 1)),
    "fastest": "-.",
    "bond": (0, (6, 1, 1, 1, 1, 1)),
}
HATCHES = {"single": "", "mptcp": "..", "wrr": "//", "wrr_openflow": "++", "fastest": "\\\\", "bond": "xx"}


def distributions(run: Run, name: str, seconds: Mapping[str, Sequence[float]], title: str) -> None:
    """Draw the share of sites that each way has loaded by a time."""
    with run.plot(name) as plot:
        axes = plot.subplots()
        for way, each in seconds.items():
            ranked = sorted(each)
            shares = [(place + 1) / len(ranked) for place in range(len(ranked))]
            axes.step(ranked, shares, where="post", label=way, color=COLOURS[way], linestyle=LINESTYLES[way])
        axes.set_xlabel("page load time, s")
        axes.set_ylabel("share of sites")
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1)
        axes.set_title(title, loc="left")
        axes.legend()


def bars(
    run: Run, name: str, means: Mapping[str, float], paper: Mapping[str, float], title: str, *, unit: str = "s"
) -> None:
    """Draw each way's mean relative to the single line's, and the paper's, where it gives one."""
    with run.plot(name) as plot:
        axes = plot.subplots()
        for place, (way, mean) in enumerate(means.items()):
            share = mean / means["single"]
            axes.bar(place - 0.2, share, width=0.38, color=COLOURS[way], hatch=HATCHES[way], edgecolor="white")
            axes.annotate(f"{mean:.1f} {unit}", (place - 0.2, share), ha="center", va="bottom")
            if way in paper:
                axes.bar(
                    place + 0.2, paper[way], width=0.38, color="white", edgecolor=COLOURS["paper"], linewidth=1.5
                )
                axes.annotate("paper", (place + 0.2, paper[way]), ha="center", va="bottom")
        axes.axhline(0.5, color="black", linewidth=0.7, linestyle=":")
        axes.set_xticks(range(len(means)), list(means))
        axes.set_ylabel("mean page load time over a single line's")
        axes.set_title(title, loc="left")
