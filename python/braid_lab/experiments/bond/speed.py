"""`bond/speed`: throughput of a bond that no link limits, and processor time per gigabit.

Links are plain cables (veth), so the measurement is of the work at the two ends: one TCP stream over one link and
over two, and small datagrams. It runs over cables with offloads, which carry super-packets whole as devices do that
split them, and without, where the kernel handles every packet separately all the way; and in cleartext, as GRE.
wireguard-go gets one of the cables too, with its ends in the same two places and the same address translation behind
it, and takes its turns. Processor time is that of the processes of both ends, including kernel work on their behalf.
Both ends, the stream's two ends and the internet between share one machine.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from braid_lab.allocations import counted_allocations
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond.figures import GoodputTrace
from braid_lab.experiments.bond.site import BOND_DEVICE, Site, site
from braid_lab.net.wireguard import program, wireguard
from braid_lab.process import LabError, Process, processor_seconds, run, wait_until
from braid_lab.product import binary

#: Destination port of small datagrams, and the size of their IP packets.
PORT, SMALL_BYTES = 7000, 200

#: Start of a stream that is left out while windows open, s.
WARM_UP_SECONDS = 1.0

#: Numbers of the internet's servers that are reached through each tunnel.
BOND, WIREGUARD = 1, 2

#: Names of the threads that carry packets, by process.
THREADS = ("braid-hub", "braid-bond")


@dataclass(frozen=True)
class Tunnel:
    """A tunnel from the host to a server: suffix of its figures, device, and the processes of its ends."""

    name: str
    server: str
    device: str
    pids: tuple[int, int]


@dataclass(frozen=True)
class Sample:
    """One stream: its goodput, and the processor time per gigabit at the far end and at the near end."""

    mbit: float
    cpu_s_per_gbit: tuple[float, float]


@dataclass(frozen=True)
class LinkSetup:
    """Links between the two ends: names, whether they carry super-packets, and whether data goes as GRE."""

    names: tuple[str, ...]
    offload: bool = True
    gre: bool = False


#: By the suffix of their figures.
LINK_SETUPS = {
    "1": LinkSetup(("one",)),
    "2": LinkSetup(("one", "two")),
    "1_without_offloads": LinkSetup(("one",), offload=False),
    "2_without_offloads": LinkSetup(("one", "two"), offload=False),
    "1_as_gre": LinkSetup(("one",), gre=True),
    "2_as_gre": LinkSetup(("one", "two"), gre=True),
}
#: One of each kind.
SMOKE_CASES = ("2_without_offloads", "1_as_gre")


@experiment(
    "bond/speed", "The bond between cables, beside wireguard-go", paper="layer3-bonding", cases=tuple(LINK_SETUPS)
)
def speed(run_: Run) -> None:
    """Measure one link and two."""
    turns, seconds = run_.of_form(full=(5, 15.0), quick=(2, 3.0), smoke=(1, 1.5))
    every = tuple(LINK_SETUPS)
    chosen = run_.cases(run_.of_form(full=every, quick=every, smoke=SMOKE_CASES))
    run_.display.expect(len(chosen) * (2 + (1 if program() is None else 2) * (turns + 1)))
    run_.table.append(["", "cables", "Mbit/s", "hub: s/Gbit", "host: s/Gbit", f"{SMALL_BYTES} bytes: 1/s"])
    if program() is None:
        run_.notes.append(
            "wireguard-go is not installed (tools/setup bench, where Go is), so there is no comparison."
        )
    for case in chosen:
        figure = f"_{case}"
        with run_.part(_said(figure)), contextlib.ExitStack() as stack:
            with run_.step(f"{_said(figure)}: build, and join the hub"):
                place = stack.enter_context(_place(LINK_SETUPS[case], run_.seed))
                internet = place.net.internet.name
                for number in (BOND, WIREGUARD):
                    place.background(internet, "braid_lab.clients.tcp_stream", "serve", place.net.server(number))
                tunnels = [_bond(place)]
            if program() is not None:
                with run_.part(f"{_said(figure)}: wireguard-go"):
                    tunnels.append(_wireguard(place, stack))
            _measure(run_, place, figure, tunnels, (turns, seconds))
            with run_.part(f"{_said(figure)}: allocations"), run_.step(f"{_said(figure)}: allocations"):
                calls = _allocations(place, tunnels[0], seconds)
                run_.figure(f"allocations_per_packet{figure}", calls, better="lower")
            _check_cleartext(run_, place, LINK_SETUPS[case], _said(figure))


@contextlib.contextmanager
def _place(setup: LinkSetup, seed: int) -> Iterator[Site]:
    made = site(
        dict.fromkeys(setup.names),
        seed=seed,
        configuration='[bond]\nencapsulation = "gre"\n' if setup.gre else "",
        hub_configuration="gre = true\n" if setup.gre else "",
        offload=setup.offload,
        far_offload=setup.offload,
    )
    with made as place:
        if setup.gre:
            _wait_for_gre(place)
        yield place


def _wait_for_gre(place: Site) -> None:
    wait_until(lambda: _cleartext_links(place) == {True}, what="every link to pass GRE", timeout=20)


def _cleartext_links(place: Site) -> set[bool]:
    """Return whether links carry cleartext data: none of them, all, or some."""
    return {link["cleartext"] for link in place.bond()["links"]}


def _check_cleartext(run_: Run, place: Site, setup: LinkSetup, case: str) -> None:
    """Check that data stayed in the expected form (sealed or cleartext) to the end.

    A link that fell silent, as on a machine that stalls, carries sealed data until GRE has passed it again.
    """
    if _cleartext_links(place) == {setup.gre}:
        return
    if not setup.gre:
        raise LabError(f"data did not go sealed: {place.bond()['links']}")
    _wait_for_gre(place)
    run_.notes.append(f"{case}: a link fell silent at the end, so a part of its data was sealed.")


def _said(figure: str) -> str:
    """Return a figure's suffix as text."""
    return figure.replace("_", " ").strip().replace("1", "1 cable").replace("2", "2 cables")


def _bond(place: Site) -> Tunnel:
    if place.hub.process is None:
        raise LabError("the hub does not run")
    return Tunnel("", place.server, BOND_DEVICE, (place.hub.process.pid, place.daemon.pid))


def _wireguard(place: Site, stack: contextlib.ExitStack) -> Tunnel:
    """Return the WireGuard tunnel for comparison, for as long as the stack lives."""
    server = place.net.server(WIREGUARD)
    other = stack.enter_context(wireguard(place.net, place.hub.far, next(iter(place.net.uplinks)), server))
    return Tunnel("_wireguard_go", server, other.device, (other.far.pid, other.near.pid))


def _measure(run_: Run, place: Site, figure: str, tunnels: list[Tunnel], plan: tuple[int, float]) -> None:
    """Measure all in turn; the failure of one does not affect the others."""
    turns, seconds = plan
    samples: dict[str, dict[int, Sample]] = {tunnel.name: {} for tunnel in tunnels}
    for turn in range(turns):
        for tunnel in tunnels:
            name = f"{_said(figure)}: a stream{tunnel.name.replace('_', ' ')}, turn {turn + 1} of {turns}"
            with run_.part(name), run_.step(name):
                samples[tunnel.name][turn] = _stream(run_, place, tunnel, seconds)
    # A tunnel without any measured stream has been recorded as failed.
    for tunnel in (each for each in tunnels if samples[each.name]):
        name = f"{_said(figure)}: small packets{tunnel.name.replace('_', ' ')}"
        row = _record(run_, tunnel, figure, list(samples[tunnel.name].values()))
        with run_.part(name), run_.step(name):
            small = _small(run_, place, tunnel, seconds)
            run_.figure(f"packets_per_second_{SMALL_BYTES}B{tunnel.name}{figure}", small, unit="1/s", better="higher")
            row.append(f"{small:.0f}")
    if len(tunnels) > 1:
        bond, other = (samples[tunnel.name] for tunnel in tunnels)
        both = [bond[turn].mbit / other[turn].mbit for turn in bond.keys() & other.keys()]
        if both:
            run_.measure(f"goodput_vs_wireguard_go{figure}", both, better="higher")


def _record(run_: Run, tunnel: Tunnel, figure: str, samples: list[Sample]) -> list[str]:
    """Record a tunnel's streams; return its row of the table, still without small packets."""

    def measure(name: str, value: Callable[[Sample], float]) -> float:
        values = [value(each) for each in samples]
        return run_.measure(f"{name}{tunnel.name}{figure}", values, unit="s", better="lower")

    rates = [each.mbit for each in samples]
    mbit = run_.measure(f"goodput{tunnel.name}{figure}", rates, unit="Mbit/s", better="higher")
    far = measure("cpu_per_gbit_far", lambda each: each.cpu_s_per_gbit[0])
    near = measure("cpu_per_gbit_near", lambda each: each.cpu_s_per_gbit[1])
    measure("cpu_per_gbit", lambda each: sum(each.cpu_s_per_gbit))
    name = tunnel.name.strip("_").replace("_", "-") or "bond"
    setup = _said(figure).replace("cables", "").replace("cable", "").strip()
    run_.table.append([name, setup, f"{mbit:.0f}", f"{far:.2f}", f"{near:.2f}"])
    return run_.table[-1]


def _stream(run_: Run, place: Site, tunnel: Tunnel, seconds: float) -> Sample:
    """Receive one stream for `seconds`."""
    before, carried = [processor_seconds(pid) for pid in tunnel.pids], _carried(place, tunnel, "rx")
    trace = _take(place, tunnel.server, seconds)
    far, near = (processor_seconds(pid) - earlier for pid, earlier in zip(tunnel.pids, before, strict=True))
    _check(run_, tunnel, _carried(place, tunnel, "rx") - carried, sum(trace.bytes))
    gbit = 8e-9 * sum(trace.bytes)
    return Sample(trace.mbit(WARM_UP_SECONDS, trace.seconds), (far / gbit, near / gbit))


def _take(place: Site, server: str, seconds: float) -> GoodputTrace:
    argv = [sys.executable, "-m", "braid_lab.clients.tcp_stream", "take", server, f"{seconds:g}"]
    report = json.loads(place.net.host.run(argv, timeout=seconds + 30).stdout)
    return GoodputTrace.unbroken(report, "the stream")


def _small(run_: Run, place: Site, tunnel: Tunnel, seconds: float) -> float:
    """Return how many small datagrams per second arrive, of as many as can be sent."""
    serve: list[str | Path] = [binary("braid-load"), "serve", "--ports", str(PORT), "--datagrams-on", tunnel.server]
    log = place.net.scratch / f"{place.net.host.name}-small{tunnel.name}"
    with Process(serve, log=log, namespace=place.net.internet.name) as server:
        server.wait_output('"ready":true')
        words = ["--to", tunnel.server, "--ports", str(PORT), "--seconds", f"{seconds:g}", "--flows", "8"]
        argv: list[str | Path] = [binary("braid-load"), "udp-rate", *words, "--packet", str(SMALL_BYTES)]
        carried = _carried(place, tunnel, "tx")
        said = json.loads(run(argv, namespace=place.net.host.name, timeout=seconds + 60).stdout.splitlines()[-1])
    _check(run_, tunnel, _carried(place, tunnel, "tx") - carried, said["delivered"] * SMALL_BYTES)
    rate: float = said["rate"]
    return rate


def _carried(place: Site, tunnel: Tunnel, direction: str) -> int:
    """Return how many bytes a tunnel has carried, `rx` or `tx` as the host sees it."""
    return place.net.host.counters(tunnel.device)[direction]["bytes"]


def _check(run_: Run, tunnel: Tunnel, carried: int, of: int) -> None:
    """Check that the traffic went through the tunnel: flows leave a bond whose thread is too slow."""
    if carried < of:
        run_.too_slow(f"of {of} bytes to {tunnel.server} {tunnel.device} carried {carried}")


def _allocations(place: Site, tunnel: Tunnel, seconds: float) -> float:
    """Return the memory allocations per packet of both ends' threads during a stream."""
    argv = [sys.executable, "-m", "braid_lab.clients.tcp_stream", "take", tunnel.server, f"{seconds + 10:g}"]
    log = place.net.scratch / f"{place.net.host.name}-counted"
    with contextlib.ExitStack() as stack:
        stack.enter_context(Process(argv, log=log, namespace=place.net.host.name))
        time.sleep(WARM_UP_SECONDS)
        counters = [
            stack.enter_context(counted_allocations(*each)) for each in zip(tunnel.pids, THREADS, strict=True)
        ]
        before = _delivered(place)
        calls = sum(each.total() for each in counters)
        time.sleep(seconds)
        calls = sum(each.total() for each in counters) - calls
        packets = _delivered(place) - before
    return calls / packets


def _delivered(place: Site) -> int:
    """Return how many inner packets the bond has delivered to the host."""
    packets = place.bond()["packets"]
    return sum(packets[each] for each in ("in_order", "held", "unordered"))
