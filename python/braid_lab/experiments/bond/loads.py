"""The loads of `bond/aggregate`: one TCP stream with CUBIC or BBR, eight, datagrams, one QUIC stream."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from braid_lab.experiments.bond import cases
from braid_lab.experiments.bond.cases import Case, Sizes
from braid_lab.experiments.bond.figures import GoodputTrace
from braid_lab.experiments.bond.site import Site
from braid_lab.fixtures import serve
from braid_lab.net.namespace import use_congestion_control
from braid_lab.product import binary
from braid_lab.servers.catalog import IPERF3_PORT

#: Rate of datagrams over that of the links: the bond must drop the excess.
OFFERED_LOAD_FACTOR = 1.2

#: Interval of iperf3's reports, s.
IPERF3_INTERVAL_SECONDS = 0.1


@dataclass(frozen=True)
class LoadRequest:
    """A load over the bond, over all links by MPTCP, or over the best link alone (`single`)."""

    place: Site
    case: Case
    kind: str
    seconds: float
    #: The link that is best for such a load alone.
    best: str

    @property
    def source(self) -> str | None:
        """The source address to bind to; None for the bond."""
        return None if self.kind == "bond" else self.place.net.uplinks[self.best].address4

    def run(self, *argv: str | Path) -> dict[str, Any]:
        """Run a program at the host, and return its report."""
        said: dict[str, Any] = json.loads(self.place.net.host.run(argv, timeout=self.seconds + 60).stdout)
        return said

    def receive(self, *argv: str | Path) -> GoodputTrace:
        """Run one of the lab's receivers, and return its trace."""
        return GoodputTrace.unbroken(self.run(*argv), f"{self.case.name}, {self.kind}:")


@dataclass(frozen=True)
class Load:
    """A load towards the host."""

    suffix: str
    sizes: Sizes
    #: What it can run over, in the order of the turns.
    kinds: tuple[str, ...]
    serve: Callable[[Site], object]
    take: Callable[[LoadRequest], GoodputTrace]
    #: The best link for it alone.
    best: Callable[[Case], str] = attrgetter("best")


def _streams(flows: int) -> Callable[[LoadRequest], GoodputTrace]:
    def take(request: LoadRequest) -> GoodputTrace:
        words = ["take", request.place.server, f"{request.seconds:g}", "--flows", str(flows)]
        words += ["--from", request.source] if request.source else []
        words += ["--mptcp"] if request.kind == "mptcp" else []
        return request.receive(sys.executable, "-m", "braid_lab.clients.tcp_stream", *words)

    return take


def _datagrams(request: LoadRequest) -> GoodputTrace:
    mbit = OFFERED_LOAD_FACTOR * sum(link.mbit for link in request.case.links.values())
    words = ["--udp", "--reverse", "--bitrate", f"{mbit:g}M", "--length", str(cases.UDP.payload)]
    words += ["--time", f"{request.seconds:g}", "--interval", f"{IPERF3_INTERVAL_SECONDS:g}", "--json"]
    words += ["--bind", request.source] if request.source else []
    said = request.run("iperf3", "--client", request.place.server, "--port", str(IPERF3_PORT), *words)
    bins = [interval["sum"]["bytes"] for interval in said["intervals"]]
    return GoodputTrace(IPERF3_INTERVAL_SECONDS, tuple(bins[: round(request.seconds / IPERF3_INTERVAL_SECONDS)]))


def _quic_stream(request: LoadRequest) -> GoodputTrace:
    words = ["--from", request.source] if request.source else []
    return request.receive(binary("braid-load"), "quic-take", request.place.server, f"{request.seconds:g}", *words)


def _serve_streams(place: Site) -> None:
    place.background(place.net.internet.name, "braid_lab.clients.tcp_stream", "serve", place.server)


def _serve_quic(place: Site) -> None:
    """Serve at one address: the echo server needs the port of the others."""
    argv: list[str | Path] = [binary("braid-load"), "quic-serve", place.server]
    place.start(place.net.internet.name, "quic", argv, ready='"ready":true')


def _serve_bbr(place: Site) -> None:
    for end in (place.net.host, place.net.internet):
        use_congestion_control(end, "bbr")
    _serve_streams(place)


TCP = Load("", cases.TCP, ("bond", "mptcp", "single"), _serve_streams, _streams(1))
BBR = Load("_bbr", cases.TCP, ("bond", "mptcp", "single"), _serve_bbr, _streams(1), best=attrgetter("fastest"))
TCP8 = Load("_tcp8", cases.TCP, ("bond", "mptcp", "single"), _serve_streams, _streams(8))
UDP = Load("_udp", cases.UDP, ("bond", "single"), lambda place: serve(place.net, "iperf3"), _datagrams)
QUIC = Load("_quic", cases.QUIC, ("bond", "single"), _serve_quic, _quic_stream)
