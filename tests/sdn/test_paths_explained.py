"""The explanation of a pair's paths agrees with the plan that it explains, whatever the pair itself sends."""

from __future__ import annotations

import re

from braid_lab.fabric.shapes import two_paths
from braid_sdn.fabric.api import report
from braid_sdn.fabric.monitor.probe import tagged

from .virtual import Network, frame, mac, ready, tags

MBIT = 10.0
#: Each number is rounded to a tenth.
ROUNDING = 0.15 + 1e-9


def explained(net: Network) -> tuple[float, list[float]]:
    """Return the maximum flow, and what each path has free, Mbit/s."""
    text = "\n".join(report.explain(net.controller, net.now, "ha", "hb")["steps"])
    (whole,) = re.findall(r"maximum flow of ([\d.]+) Mbit/s", text)
    return float(whole), [float(free) for free in re.findall(r"([\d.]+) Mbit/s free", text)]


def load(net: Network, source: str, shares: dict[int, float], seconds: int) -> list[tuple[float, list[float]]]:
    """Send by each tag (0: none) its share of a path's rate; return the explanation of each second."""
    told = []
    data = frame(mac(1), mac(2), bytes(round(MBIT * 1e6 / 8 / 100) - 22))
    for _ in range(seconds):
        for part in range(100):
            for tag, share in shares.items():
                if int((part + 1) * share) > int(part * share):
                    net.send(source, tagged(data, tag) if tag else data)
            net.run(0.01)
        told.append(explained(net))
    return told


def test_the_maximum_flow_is_that_of_the_plan_which_does_not_count_the_pairs_own_load() -> None:
    net = ready(two_paths(mbit=MBIT))
    for whole, free in load(net, "ha", dict.fromkeys(tags(net, "ha", "hb"), 0.95), 12):
        assert len(free) == 2
        assert whole + ROUNDING >= sum(free) > 1.8 * MBIT


def test_others_load_makes_it_less() -> None:
    net = ready(two_paths(mbit=MBIT))
    # Without an edge's tag, by the single path.
    *_, (whole, free) = load(net, "ha", {0: 0.5}, 12)
    assert sum(free) <= whole + ROUNDING < 1.7 * MBIT
