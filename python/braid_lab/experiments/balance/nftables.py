"""The baseline: weighted uplinks by firewall marks, as mwan3 and VyOS set them up.

Both restore a connection's mark in prerouting, mark new connections by weight (`numgen inc`, the exact counterpart of
weighted round robin), save the mark in the connection, look routes up by mark, and masquerade. What they add to that
(counters per rule, exceptions for connected networks, health checks) costs time and is left out: this is the shortest
rule set that does the work.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from braid_lab.experiments.balance.ab_testbed import WEIGHTS, Side

#: First routing table and mark of the uplinks.
FIRST_MARK = 201


def ruleset(weights: Mapping[str, int]) -> str:
    """Return the rules for uplinks of these weights; devices are named after the uplinks."""
    marks = dict(zip(weights, itertools.count(FIRST_MARK), strict=False))
    total = sum(weights.values())
    ends = list(itertools.accumulate(weights.values()))
    numbers = [str(low) if low == high - 1 else f"{low}-{high - 1}" for low, high in itertools.pairwise([0, *ends])]
    choices = ", ".join(f"{each} : jump to_{name}" for each, name in zip(numbers, weights, strict=True))
    chains = "".join(
        f"\tchain to_{name} {{\n\t\tmeta mark set {mark}\n\t\tct mark set meta mark\n\t\taccept\n\t}}\n"
        for name, mark in marks.items()
    )
    devices = ", ".join(f'"{name}"' for name in weights)
    return (
        "table ip balance {\n"
        f"{chains}"
        "\tchain prerouting {\n"
        "\t\ttype filter hook prerouting priority mangle; policy accept;\n"
        # Outbound only: a reply must find its client by the main table.
        '\t\tiifname "lan0" meta mark set ct mark\n'
        f'\t\tiifname "lan0" ct state new numgen inc mod {total} vmap {{ {choices} }}\n'
        "\t}\n"
        "\tchain postrouting {\n"
        "\t\ttype nat hook postrouting priority srcnat; policy accept;\n"
        f"\t\toifname {{ {devices} }} masquerade\n"
        "\t}\n"
        "}\n"
    )


def install(side: Side) -> None:
    """Make this side's gateway balance with nftables."""
    for mark, uplink in enumerate(side.uplinks, start=FIRST_MARK):
        side.gateway.ip(
            f"rule add fwmark {mark} lookup {mark} pref {mark}",
            f"route add default via {uplink.gateway} dev {uplink.near.device} table {mark}",
        )
    side.gateway.run(["nft", "-f", "-"], text=ruleset(WEIGHTS))
