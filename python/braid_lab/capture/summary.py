"""Tables and histograms of captured web traffic, after [host] Figs. 6 and 7."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braid_lab.capture.flows import Traffic, Visit
from braid_lab.capture.what_if import Estimate, estimate
from braid_lab.plots import COLOURS
from braid_lab.progress import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def as_json(traffic: Traffic, estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Return everything as plain data."""
    return {
        "visits": [
            {
                "site": visit.site,
                "seconds": round(visit.seconds, 3),
                "bytes": visit.bytes,
                "concurrency": visit.concurrency,
                "flows": [
                    {
                        "server": flow.name,
                        "protocol": flow.protocol,
                        "began_s": round(flow.first - visit.flows[0].first, 4),
                        "ended_s": round(flow.last - visit.flows[0].first, 4),
                        "bytes": flow.bytes,
                    }
                    for flow in visit.flows
                ],
            }
            for visit in traffic.visits
        ],
        "other": {"packets": traffic.other_packets, "bytes": traffic.other_bytes},
        "what_if": [vars(each) for each in estimates],
    }


def show(traffic: Traffic) -> None:
    """Print the sites, and the whole by protocol."""
    rows = [
        [
            visit.site,
            str(len(visit.flows)),
            str(visit.concurrency),
            f"{visit.bytes / 1e6:.2f}",
            f"{visit.seconds:.2f}",
        ]
        for visit in traffic.visits
    ]
    table("Sites", ["site", "flows", "at a time", "MB", "s"], rows)
    flows = traffic.flows()
    kinds = sorted({flow.protocol for flow in flows})
    rows = [_protocol(kind, [flow.bytes for flow in flows if flow.protocol == kind]) for kind in kinds]
    rows.append(_protocol("all", [flow.bytes for flow in flows]))
    table("Flows by protocol", ["protocol", "flows", "MB", "median kB", "90 % below kB", "largest kB"], rows)
    counts = [len(visit.flows) for visit in traffic.visits]
    rows = [
        ["flows a site, mean", f"{statistics.fmean(counts):.1f}", "about 42"],
        ["flows a site, largest", str(max(counts)), "281"],
        ["flows of up to 300 kB", f"{100 * small_share(flows_bytes(traffic)):.1f} %", "the majority"],
        ["largest flow, MB", f"{max(flows_bytes(traffic)) / 1e6:.2f}", "close to 5"],
        ["other packets", str(traffic.other_packets), ""],
    ]
    table("In all", ["", "here", "host-flow-balancing §4"], rows)


def _protocol(kind: str, sizes: Sequence[int]) -> list[str]:
    ranked = sorted(sizes)
    kilobytes = (statistics.median(ranked), ranked[int(0.9 * (len(ranked) - 1))], ranked[-1])
    return [kind, str(len(ranked)), f"{sum(ranked) / 1e6:.2f}", *(f"{each / 1e3:.1f}" for each in kilobytes)]


def flows_bytes(traffic: Traffic) -> list[int]:
    """Return the size of every flow."""
    return [flow.bytes for flow in traffic.flows()]


def small_share(sizes: Sequence[int]) -> float:
    """Return the share of flows of "a few hundred KB or less"."""
    return sum(size <= 300_000 for size in sizes) / len(sizes)


def estimates(visits: Sequence[Visit], mbit: Sequence[float]) -> list[Estimate]:
    """Estimate every visit over lines of these rates."""
    return [estimate(visit, mbit) for visit in visits]


def show_estimates(found: Sequence[Estimate], mbit: Sequence[float]) -> None:
    """Print what balancing could gain."""

    def row(name: str, seconds: Sequence[float]) -> list[str]:
        single, wrr, least, packets = seconds
        return [name, f"{single:.2f}", *(f"{1 - each / single:.2f}" for each in (wrr, least, packets))]

    rows = [row(each.site, (each.single, each.wrr, each.least_loaded, each.packets)) for each in found]
    sums = [sum(getattr(each, name) for each in found) for name in ("single", "wrr", "least_loaded", "packets")]
    rows.append(row("all", sums))
    lines = " and ".join(f"{each:g}" for each in mbit)
    header = ["site", "best line alone s", "less by wrr", "by fewest flows", "by packets"]
    table(f"Estimated gain over lines of {lines} Mbit/s: capacity alone, no round trips", header, rows)


def write(traffic: Traffic, found: Sequence[Estimate], folder: Path) -> None:
    """Write FOLDER/analysis.json and the histograms of flows per site and of flow sizes."""
    from braid_lab.plots import new

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "analysis.json").write_text(json.dumps(as_json(traffic, found), indent=1) + "\n")
    for name, draw in (("flows_per_site", flows_per_site), ("flow_sizes", flow_sizes)):
        plot = new(7.0, 4.0)
        draw(plot.subplots(), traffic)
        for kind in ("svg", "png"):
            plot.savefig(folder / f"{name}.{kind}")


def flows_per_site(axes: Axes, traffic: Traffic) -> None:
    """Draw the histogram of flows per site (the paper's Fig. 6)."""
    axes.hist([len(visit.flows) for visit in traffic.visits], bins=range(0, 301, 10), color=COLOURS["wrr"])
    axes.axvline(42, color=COLOURS["paper"], linestyle="--", label="the paper's mean")
    axes.axvline(281, color=COLOURS["paper"], linestyle=":", label="the paper's largest")
    axes.set_xlabel("flows of a site")
    axes.set_ylabel("sites")
    axes.set_title("Flows per site (the paper's Fig. 6)", loc="left")
    axes.legend()


def flow_sizes(axes: Axes, traffic: Traffic) -> None:
    """Draw the histogram of flow sizes (the paper's Fig. 7)."""
    axes.hist([size / 1000 for size in flows_bytes(traffic)], bins=range(0, 5501, 100), color=COLOURS["wrr"])
    axes.axvline(5000, color=COLOURS["paper"], linestyle="--", label="the paper's largest, about")
    axes.set_yscale("log")
    axes.set_xlabel("size of a flow, kB")
    axes.set_ylabel("flows")
    axes.set_title("Flow sizes (the paper's Fig. 7)", loc="left")
    axes.legend()
