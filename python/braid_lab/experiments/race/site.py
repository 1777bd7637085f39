"""A site behind several uplinks: its server answers on every address of `address_plan`, and Braid chooses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from braid_lab.experiments.race import address_plan
from braid_lab.fixtures import served_everywhere
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import Topology, UplinkSpec, network
from braid_lab.product import Braid, braid


@dataclass(frozen=True)
class Site:
    """A running network with Braid on its host."""

    net: Topology
    daemon: Braid

    def uplink_index(self, name: str) -> int:
        """Return an uplink's index, as `address_plan.pinned_address` counts."""
        return self.net.uplinks[name].index


@contextlib.contextmanager
def site(
    lines: Mapping[str, LinkSpec | None], *, capacity: str | None = None, watched: bool = True
) -> Iterator[Site]:
    """Build these uplinks (None: a plain cable), a web server, and Braid; IPv4 only."""
    specs = [UplinkSpec(name, line, families=frozenset({4})) for name, line in lines.items()]
    with network(specs) as net:
        net.internet.ip(*(f"route add local {each} dev lo" for each in address_plan.everything(len(specs))))
        net.stack.enter_context(served_everywhere(net.internet, net.scratch))
        run_dir = net.scratch / f"braid-{net.host.name}"
        file = run_dir.with_suffix(".toml")
        file.write_text(address_plan.configuration(lines, capacity=capacity, watched=watched))
        with braid(net.host, run_dir, "--config", file) as daemon:
            yield Site(net, daemon)
