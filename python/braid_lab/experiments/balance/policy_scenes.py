"""Scenes of `balance/policies`: two lines, what lies behind them, and hosts that use them in one way each.

A scene has a host for every policy and one for each line alone. Each host has lines of its own, so that its Braid
runs on while the others are measured, and knows what this policy's own traffic has shown. IPv4 only.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from braid_lab.fixtures import DEMO_UPLINKS, filled, served_everywhere
from braid_lab.net import scratch
from braid_lab.net.links import LinkSpec
from braid_lab.net.namespace import Namespace
from braid_lab.net.paths import PathKey, paths
from braid_lab.net.topology import Uplink, UplinkSpec, network, only
from braid_lab.product import Braid, braid

POLICIES = ("rr", "wrr", "race", "least-loaded", "fastest")

#: Server of the downloads that fill a line: in a network of its own, so that nothing that these show of their path
#: counts for the pages'.
OTHERS = "203.0.113.1"

#: Sites of which each is near by one line and far by the other one, and their networks.
NETWORKS = {"east": ("81.1.0.0/16",), "west": ("82.1.0.0/16",)}

#: Half of a page's eight hosts are at either site.
SITE_SERVERS = [address for number in range(1, 5) for address in (f"81.1.1.{number}", f"82.1.1.{number}")]


@dataclass(frozen=True)
class Scene:
    """Two lines, and what lies behind them."""

    lines: Mapping[str, LinkSpec]
    #: Lines that may be the better one alone.
    candidates: tuple[str, ...]
    #: One-way delay from the end of each line to each site, ms; all servers are at the end of the lines if empty.
    path_ms: Mapping[PathKey, float] = field(default_factory=dict)
    #: Endless downloads of other programs of the same machine over the first line.
    others: int = 0

    def seeded(self, seed: int) -> dict[str, LinkSpec]:
        """Return the lines with seeds of their own."""
        return {
            name: replace(line, seed=seed * len(self.lines) + number)
            for number, (name, line) in enumerate(self.lines.items())
        }


#: The demo's lines, of which neither is better for everything.
HOUSEHOLD = Scene({spec.name: spec.line for spec in DEMO_UPLINKS if spec.line is not None}, ("dsl", "lte"))

#: Lines that are equal but for their paths.
SITES = Scene(
    {name: LinkSpec(rate="30Mbit/s", delay="5ms", queue="250ms") for name in ("dsl", "lte")},
    ("dsl", "lte"),
    path_ms={("dsl", "east"): 5.0, ("dsl", "west"): 100.0, ("lte", "east"): 100.0, ("lte", "west"): 5.0},
)

#: The nearer line loses 2 %.
LOSSY = Scene(
    {
        "dsl": LinkSpec(rate="25Mbit/s", delay="15ms", loss="2%", queue="250ms"),
        "lte": LinkSpec(rate="25Mbit/s", delay="30ms", queue="250ms"),
    },
    ("lte",),
)

#: Downloads fill the nearer line, which is also the slower one.
FULL = Scene(
    {
        "dsl": LinkSpec(rate="8Mbit/s", delay="10ms", queue="250ms"),
        "lte": LinkSpec(rate="25Mbit/s", delay="30ms", queue="250ms"),
    },
    ("lte",),
    others=2,
)

#: One line has a tenth of the other's rate.
UNEQUAL = Scene(
    {
        "dsl": LinkSpec(rate="50Mbit/s", delay="10ms", queue="250ms"),
        "lte": LinkSpec(rate="5Mbit/s", delay="40ms", queue="250ms"),
    },
    ("dsl",),
)


@dataclass(frozen=True)
class Place:
    """A host of a scene that uses the lines in one way, by a policy or one line alone."""

    case: str
    host: Namespace
    #: Addresses of a page's hosts.
    servers: Sequence[str]
    #: None on a host without Braid.
    daemon: Braid | None

    def opened(self) -> dict[str, int]:
        """Return the flows opened so far, by uplink; nothing without Braid."""
        return {name: uplink["flows_opened"] for name, uplink in self._uplinks().items()}

    def capacities(self) -> dict[str, str]:
        """Return the capacities down, Mbit/s, by uplink, and how each is known; nothing of those that are not."""
        known = {name: uplink.get("rx_capacity") for name, uplink in self._uplinks().items()}
        return {name: f"{each['rate_bit_s'] / 1e6:.2f} {each['basis']}" for name, each in known.items() if each}

    def predictions(self, server: str) -> dict[str, str]:
        """Return the predicted time of 1 MB from a server, by uplink, and the losses that its path has shown.

        Nothing without predictions, which `fastest` alone makes.
        """
        if self.daemon is None:
            return {}
        destinations = self.daemon.json("paths")["destinations"]
        address = ipaddress.ip_address(server)
        paths = [each["paths"] for each in destinations if address in ipaddress.ip_network(each["network"])]
        return {
            path["uplink"]: f"{path['predicted_ms']:.0f} ms, {path['lost_packets']} of {path['data_packets']} lost"
            for path in itertools.chain.from_iterable(paths)
            if path["predicted_ms"] is not None
        }

    def flows(self, newest_s: float) -> list[dict[str, object]]:
        """Return the TCP flows of the last `newest_s` seconds, each with its times and the reason for its line."""
        if self.daemon is None:
            return []
        flows = [each for each in self.daemon.json("flows")["flows"] if each["protocol"] == "tcp"]
        return [
            {
                "opened_s": round(newest_s - each["age_ms"] / 1000, 3),
                "used_s": round(newest_s - each["idle_ms"] / 1000, 3),
                "remote": each["remote"],
                "uplink": each["uplink"],
                "bytes": each["rx_bytes"],
                "why": each["why"],
            }
            for each in sorted(flows, key=lambda flow: -flow["age_ms"])
            if each["age_ms"] <= 1000 * newest_s
        ]

    def _uplinks(self) -> dict[str, dict[str, Any]]:
        if self.daemon is None:
            return {}
        return {uplink["name"]: uplink for uplink in self.daemon.json("uplinks")["uplinks"]}


@contextlib.contextmanager
def built(scene: Scene, policies: Sequence[str], seed: int) -> Iterator[dict[str, Place]]:
    """Build a scene with a host for each line alone and for each policy, all at once: most of that is waiting."""
    # Made on first use, which several threads must not do.
    scratch.directory()
    stacks = {case: contextlib.ExitStack() for case in (*scene.candidates, *policies)}
    # Programs end with the thread that started them, so the threads stay as long as the hosts.
    with ThreadPoolExecutor(max_workers=len(stacks)) as pool:
        building = {
            case: pool.submit(stack.enter_context, _host(scene, case, seed)) for case, stack in stacks.items()
        }
        try:
            wait(building.values())
            yield {case: each.result() for case, each in building.items()}
        finally:
            closing = [pool.submit(stack.close) for stack in stacks.values()]
            wait(closing)
        for each in closing:
            each.result()


@contextlib.contextmanager
def _host(scene: Scene, case: str, seed: int) -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        host, uplinks, servers, folder = stack.enter_context(_network(scene, seed))
        first = next(iter(uplinks.values()))
        daemon = None
        if case in scene.lines:
            stack.enter_context(only(host, uplinks, case))
            if scene.others:
                host.ip(f"route add {OTHERS} via {first.gateway4} dev {first.name} src {first.address4}")
        else:
            file = folder / f"{host.name}.toml"
            file.write_text(_configuration(case, first.name if scene.others else None))
            daemon = stack.enter_context(braid(host, folder / f"braid-{host.name}", "--config", file))
        if scene.others:
            stack.enter_context(filled(host, first, scene.others, OTHERS, folder))
        yield Place(case, host, servers, daemon)


def _configuration(policy: str, filled_line: str | None) -> str:
    text = f'policy = "{policy}"\n'
    if filled_line is not None:
        text += f'\n[[rule]]\nname = "others"\ndestination = "{OTHERS}/32"\nuse = "{filled_line}"\n'
    return text


@contextlib.contextmanager
def _network(scene: Scene, seed: int) -> Iterator[tuple[Namespace, Mapping[str, Uplink], list[str], Path]]:
    """Build the network of one host; yields the host, its uplinks, the addresses of a page's hosts, and a folder."""
    lines = scene.seeded(seed)
    if scene.path_ms:
        line = LinkSpec(queue="10000p")
        with paths(list(lines), NETWORKS, line=line, access=lines) as far, contextlib.ExitStack() as stack:
            for key, delay in scene.path_ms.items():
                far.links[key].request({"set": {"delay": f"{delay:g} ms"}})
            for destination in far.destinations.values():
                stack.enter_context(served_everywhere(destination, far.scratch))
            yield far.host, far.uplinks, SITE_SERVERS, far.scratch
        return
    specs = [UplinkSpec(name, line, families=frozenset({4})) for name, line in lines.items()]
    with network(specs) as net:
        net.internet.ip(f"address add {OTHERS}/32 dev lo")
        with served_everywhere(net.internet, net.scratch):
            yield net.host, net.uplinks, net.servers(), net.scratch
