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
    #: The experiment that repeats it, and the figures of its result to look at, of which a short form may lack some;
    #: None if nothing repeats it.
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
ONE_SITE = "the corpus in place of one site"
EMULATED = "emulated lines in place of Swisscom's DSL and LTE"
NORNET = "emulated paths of 10 Mbit/s and 40 ms in place of those from Oslo to Longyearbyen"
CHART = "the paper has a chart without numbers"
PATHS = "emulated paths with round trips like the paper's"

FIGURES = (
    PaperFigure(HOST, "6", "flows per site", "pages/flows", ("flows_mean", "flows_largest"), MODEL_SITES),
    PaperFigure(HOST, "7", "flow sizes", "pages/flows", ("flows_to_300_kb", "flow_mb_largest"), MODEL_SITES),
    PaperFigure(
        HOST,
        "9",
        "page load times over two lines",
        "pages/static-tcp",
        ("mean_reduction", "mean_reduction_wrr_openflow", "median_s_single", "median_s_wrr"),
        MODEL_SITES,
    ),
    PaperFigure(
        HOST,
        "10",
        "page load time beside MPTCP",
        "pages/mptcp",
        ("mean_reduction_mptcp", "mean_reduction_wrr", "mean_reduction_wrr_openflow", "wrr_vs_mptcp"),
        f"{ONE_SITE}, and today's MPTCP",
    ),
    PaperFigure(
        HOST,
        "11",
        "page load time over QUIC",
        "pages/quic",
        ("mean_reduction", "mean_reduction_wrr_openflow"),
        ONE_SITE,
    ),
    PaperFigure(HOST, "12", "page load time beside a video", "pages/video", ("mean_reduction",), MODEL_SITES),
    PaperFigure(
        HOST,
        "13",
        "throughput of the video",
        "pages/video",
        ("video_mbit_reference", "video_mbit_single", "video_mbit_wrr", "video_throughput_vs_reference"),
        f"a clip of the lab's own in place of YouTube's; {CHART}",
    ),
    PaperFigure(HOST, "14", "the path of a walk across a campus", None, note="the place cannot be repeated"),
    PaperFigure(
        HOST,
        "15",
        "rates of WiFi and LTE on that walk",
        "balance/dynamic",
        ("walk_s", "walk_wifi_mbit_largest", "walk_lte_mbit_indoors", "walk_lte_mbit_outdoors"),
        "the rates of a seeded walk that is played; the paper's data are not public, and its text says 160 Mbit/s at "
        "most, well below 10 indoors, around 30 outdoors",
    ),
    PaperFigure(
        HOST,
        "16",
        "page load times on the walk",
        "pages/dynamic",
        ("median_of_sites_s_wifi", "median_of_sites_s_lte", "median_of_sites_s_wrr_true"),
        MODEL_WALK,
    ),
    PaperFigure(
        HOST,
        "17",
        "mean page load time on the walk",
        "pages/dynamic",
        ("page_load_s_wifi", "page_load_s_lte", "page_load_s_wrr_true", "reduction_vs_lte_wrr"),
        MODEL_WALK,
    ),
    PaperFigure(
        BOND,
        "3",
        "throughput per link by k and T_dwd",
        "bond/paper-single",
        tuple(f"line_loss_overflow_k{k}_{wait}ms" for k in ("0.1", "0.5", "1") for wait in (50, 250, 500)),
        f"{EMULATED}; the losses that the paper's text gives. The short form has two of the nine pairs, on half the "
        "ramp",
    ),
    PaperFigure(
        BOND,
        "4",
        "demand of several UDP flows",
        "bond/paper-multi",
        ("demand_kept",),
        "a drawing: beginnings of flows and the 11 Mbit/s beyond the fixed line until 12 s are from the text, the "
        "rest is chosen to match. Ours is the share of it that the sender kept to",
    ),
    PaperFigure(
        BOND,
        "5",
        "weights with several UDP flows",
        "bond/paper-multi",
        ("given_back_s", "shifted_s_20", "burst_packets_20", "line_loss", "in_order"),
        f"{EMULATED}, and the demand as in Fig. 4; the one number of the paper's text is the time until the mobile "
        "line is given back",
    ),
    PaperFigure(
        BOND,
        "6",
        "TCP cross-traffic on the fixed line",
        "bond/paper-tcp",
        (
            "tcp_mbit_second_50ms",
            "tcp_mbit_second_500ms",
            "tcp_mbit_second_1000ms",
            "tcp_mbit_1_flows",
            "tcp_mbit_2_flows",
        ),
        f"{EMULATED}, and a server behind them for the public one, 50 ms away; the paper's text has numbers for one "
        "and two TCP flows. The short form leaves 500 ms out and is over in a seventh of the time",
    ),
    PaperFigure(
        MPSDN,
        "3",
        "throughput by delay imbalance",
        "fabric/mdi",
        ("mbit_none_0.3", "mbit_paper_0.3", "mbit_ours_0.3", "single_kept_to_mdi_paper", "worst_vs_single"),
        "a chart, of which the text says that Algorithm 1 (`paper`) helps beyond 0.15 and is below a single path "
        "beyond 0.4; ours leaves out paths that would make it slower",
    ),
    PaperFigure(
        MPSDN,
        "4",
        "transient congestion of a path",
        "fabric/congestion",
        ("outage_ms_congestion", "left_after_s_congestion", "remaining_path_mbit_congestion"),
        "two paths of 10 Mbit/s and UDP of 100 Mbit/s in place of 1 Gbit/s; the paper's flow falls to nothing and "
        "grows to the 10 Mbit/s of the other path, without times in its text",
    ),
    PaperFigure(MPSDN, "5", "goodput beside MPTCP", "fabric/mptcp", ("worst_vs_mptcp",), "today's kernel MPTCP"),
    PaperFigure(
        MPSDN,
        "6",
        "throughput over one path and over several",
        "fabric/l3",
        ("mbit_single", "mbit_multi", "gain"),
        f'{NORNET}; the paper\'s text says "roughly doubled"',
    ),
    PaperFigure(
        MPSDN,
        "7",
        "sequence numbers at the receiver",
        "fabric/l3",
        ("behind_unordered", "behind_multi"),
        f"{NORNET}. Ours is the share of segments that lie behind one that came before, as they come (the paper's) "
        f"and with order restored; {CHART}",
    ),
    PaperFigure(
        MPSDN,
        "8",
        "throughput of different traffic",
        "fabric/l3",
        ("gain_stream", "gain_http", "gain_ftp"),
        f"{NORNET}, our own stream for netperfmeter, curl for wget; {CHART}",
    ),
    PaperFigure(
        OFRP, "1 (a)", "round trips to the hops of four links", None, note="the providers' paths cannot be repeated"
    ),
    PaperFigure(OFRP, "1 (b)", "round trips over an hour", "race/paths", ("rtt_cov",), "emulated paths"),
    *(
        PaperFigure(
            OFRP,
            f"4 ({letter})",
            f"throughput of each link to {where}",
            "race/paths",
            (f"hit_ratio_{where}", f"throughput_of_best_{where}"),
            f"{PATHS}; of the chart ours has what follows from it, how often and how nearly the best link was chosen",
        )
        for letter, where in (("a", "de"), ("b", "us"), ("c", "jp"))
    ),
    PaperFigure(OFRP, "5", "how often the best link was chosen", "race/paths", ("hit_ratio", "hit_ratio_rr"), PATHS),
    PaperFigure(
        OFRP,
        "6",
        "throughput of what was chosen",
        "race/paths",
        ("throughput_of_best", "throughput_of_best_rr", "throughput_of_best_de", "throughput_of_best_rr_de"),
        f"{PATHS}; shares of the best link's throughput, for the paper's kB/s",
    ),
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
