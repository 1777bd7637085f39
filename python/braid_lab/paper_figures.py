"""All figures of the four papers that show measurements, and the experiments that repeat them.

Drawings of architectures, testbeds and protocols are not among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HOST, BOND, MPSDN, OFRP = "host-flow-balancing", "layer3-bonding", "mpsdn", "on-the-fly-rtt-probing"


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a paper."""

    paper: str
    number: str
    shows: str
    #: The experiment that repeats it, and the figures of its result to look at; None if nothing repeats it.
    experiment: str | None
    ours: tuple[str, ...] = ()
    #: The difference between both, or the reason why it is not repeated.
    note: str = ""

    @property
    def name(self) -> str:
        """The paper and its number there."""
        return f"{self.paper} Fig. {self.number}"


MODEL_SITES = "a corpus in place of the sites of 2017"
MODEL_WALK = "the corpus, and a part of a seeded walk"

FIGURES = (
    PaperFigure(HOST, "6", "flows per site", "pages/flows", ("flows_mean", "flows_largest"), MODEL_SITES),
    PaperFigure(HOST, "7", "flow sizes", "pages/flows", ("flows_to_300_kb", "flow_mb_largest"), MODEL_SITES),
    PaperFigure(
        HOST,
        "9",
        "page load times over two lines",
        "pages/static-tcp",
        ("mean_reduction", "median_s_wrr"),
        MODEL_SITES,
    ),
    PaperFigure(
        HOST,
        "10",
        "page load time beside MPTCP",
        "pages/mptcp",
        ("mean_reduction_mptcp", "mean_reduction_wrr", "wrr_vs_mptcp"),
        "the corpus in place of one site, and today's MPTCP",
    ),
    PaperFigure(
        HOST, "11", "page load time over QUIC", "pages/quic", ("mean_reduction",), "the corpus in place of one site"
    ),
    PaperFigure(HOST, "12", "page load time beside a video", "pages/video", ("mean_reduction",), MODEL_SITES),
    PaperFigure(HOST, "13", "throughput of the video", "pages/video", ("video_throughput_vs_reference",)),
    PaperFigure(HOST, "14", "the path of a walk across a campus", None, note="the place cannot be repeated"),
    PaperFigure(
        HOST,
        "15",
        "rates of WiFi and LTE on that walk",
        "balance/dynamic",
        note="a seeded walk; the data are not public",
    ),
    PaperFigure(HOST, "16", "page load times on the walk", "pages/dynamic", ("reduction_vs_lte_wrr",), MODEL_WALK),
    PaperFigure(
        HOST,
        "17",
        "mean page load time on the walk",
        "pages/dynamic",
        ("reduction_vs_lte_wrr",),
        MODEL_WALK,
    ),
    PaperFigure(BOND, "3", "throughput per link by k and T_dwd", "bond/paper-single"),
    PaperFigure(BOND, "4", "demand of several UDP flows", "bond/paper-multi"),
    PaperFigure(BOND, "5", "weights with several UDP flows", "bond/paper-multi"),
    PaperFigure(BOND, "6", "TCP cross-traffic on the fixed line", "bond/paper-tcp"),
    PaperFigure(MPSDN, "3", "throughput by delay imbalance", "fabric/mdi"),
    PaperFigure(MPSDN, "4", "transient congestion of a path", "fabric/congestion"),
    PaperFigure(MPSDN, "5", "goodput beside MPTCP", "fabric/mptcp", ("worst_vs_mptcp",), "today's kernel MPTCP"),
    PaperFigure(MPSDN, "6", "throughput over one path and over several", "fabric/l3"),
    PaperFigure(MPSDN, "7", "sequence numbers at the receiver", "fabric/l3"),
    PaperFigure(MPSDN, "8", "throughput of different traffic", "fabric/l3", note="our own stream for netperfmeter"),
    PaperFigure(
        OFRP, "1 (a)", "round trips to the hops of four links", None, note="the providers' paths cannot be repeated"
    ),
    PaperFigure(OFRP, "1 (b)", "round trips over an hour", "race/paths", ("rtt_cov",), "emulated paths"),
    *(
        PaperFigure(
            OFRP, f"4 ({letter})", f"throughput of each link to {where}", "race/paths", (f"hit_ratio_{where}",)
        )
        for letter, where in (("a", "de"), ("b", "us"), ("c", "jp"))
    ),
    PaperFigure(OFRP, "5", "how often the best link was chosen", "race/paths", ("hit_ratio",)),
    PaperFigure(OFRP, "6", "throughput of what was chosen", "race/paths", ("throughput_of_best",)),
)


@dataclass(frozen=True)
class Entry:
    """A figure in the report's index."""

    figure: PaperFigure
    #: measured, failed, not measured yet, or not repeated.
    state: str
    #: Values of our figures, with the paper's where it gives one.
    values: list[dict[str, Any]]


def index(results: list[dict[str, Any]]) -> list[Entry]:
    """Return an entry for every figure, with what these results say about it."""
    by_name = {each["experiment"]: each for each in results}
    return [_entry(figure, by_name.get(figure.experiment or "")) for figure in FIGURES]


def _entry(figure: PaperFigure, result: dict[str, Any] | None) -> Entry:
    if figure.experiment is None:
        return Entry(figure, "not repeated", [])
    if result is None:
        return Entry(figure, "not measured yet", [])
    values = [each for each in result["figures"] if each["name"] in figure.ours]
    return Entry(figure, "failed" if result["failed"] else f"measured, {result['form']}", values)
