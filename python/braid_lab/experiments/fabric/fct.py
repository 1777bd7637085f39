"""fabric/fct: completion times of flows on a leaf-spine network with one slow spine.

Flows of a web search's sizes begin at random moments between hosts of different racks, as many as make up a stated
load of the hosts' lines. The same flows run over three networks in turn: a leaf-spine network whose leaves have
edges, the same network with each flow kept to one spine by a hash (ECMP), and one switch without limits, in which
nothing but the hosts' own lines limits a flow. Presto, CONGA and LetFlow are compared like this.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from braid_lab.clients.flow_mix import LINGER_S, PlannedFetch
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.race.figures import percentile
from braid_lab.fabric.edges import edged_network
from braid_lab.fabric.ovs import OvsNetwork, ovs_network
from braid_lab.fabric.racks import RackHost, fill_racks, hash_over_spines
from braid_lab.fabric.shapes import Shape, Station, Wire
from braid_lab.fabric.web_search import SCALE, Flow, flows
from braid_lab.net.links import LinkSpec
from braid_lab.plots import COLOURS
from braid_lab.process import LabError, Process
from braid_lab.servers import catalog

#: Mbit/s of each spine's lines: together a rack has somewhat more than its hosts.
SPINES = {"S1": 5.0, "S2": 5.0, "S3": 5.0, "S4": 1.25}
LEAVES = ("L1", "L2")
HOSTS = 3
#: Mbit/s of a host's line.
HOST_MBIT = 5.0
#: One way, of each line.
DELAY_MS = 0.5
#: Seconds until the first flow, in which the clients start.
LEAD_S = 2.0
#: Sizes below and above which flows count as short and long: 100 kB and 1 MB in the unscaled distribution.
SHORT, LONG = 100_000 * SCALE, 1_000_000 * SCALE

LOADS = {"load_30": 0.3, "load_60": 0.6, "load_80": 0.8}
#: The case whose figures have no suffix.
PLAIN = "load_60"
KINDS = ("fabric", "ecmp", "one_switch")
COLOUR = {"fabric": COLOURS["bond"], "ecmp": COLOURS["wrr"], "one_switch": COLOURS["single"]}


@dataclass(frozen=True)
class Extent:
    """Seconds in which flows begin, and how often each network has its turn with other flows."""

    seconds: float
    runs: int
    loads: tuple[str, ...]


FULL = Extent(60.0, 3, tuple(LOADS))
QUICK = Extent(30.0, 1, (PLAIN,))
SMOKE = Extent(0.5, 1, (PLAIN,))


@dataclass(frozen=True)
class Done:
    """A flow and the seconds that it took; None if it did not end."""

    flow: Flow
    seconds: float | None


def leaf_spine(*, edges: bool) -> Shape:
    """Return the network, with a rack at each leaf."""
    wires = tuple(Wire(leaf, spine, mbit, DELAY_MS) for leaf in LEAVES for spine, mbit in SPINES.items())
    stations = tuple(Station(f"r{number}", leaf, edge=edges) for number, leaf in enumerate(LEAVES, 1))
    return Shape((*LEAVES, *SPINES), wires, stations)


def one_switch() -> Shape:
    """Return a switch with all racks."""
    return Shape(("X",), (), tuple(Station(f"r{number}", "X") for number in range(1, len(LEAVES) + 1)))


@experiment(
    "fabric/fct", "Completion times of a web search's flows, one spine slow", paper="mpsdn §V-3", cases=tuple(LOADS)
)
def fct(run: Run) -> None:
    """Measure each load over the three networks in turn."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    loads = run.cases(extent.loads)
    run.display.expect(len(loads) * extent.runs * len(KINDS) * 2)
    run.table.append(["load", "network", "flows", "p50 ms", "p99 ms", "short p99 ms", "long mean ms", "did not end"])
    rows: list[dict[str, float | str | int]] = []
    for load in loads:
        with run.part(load):
            found: dict[str, list[list[Done]]] = {kind: [] for kind in KINDS}
            for number in range(extent.runs):
                plan = _plan(run, load, number, extent.seconds)
                for kind in KINDS:
                    found[kind].append(_measure(run, kind, plan, f"{load}, turn {number + 1} of {extent.runs}"))
            _record(run, load, found)
            rows += [
                {"load": load, "network": kind, "run": number, "bytes": done.flow.bytes, "s": done.seconds or -1.0}
                for kind, runs in found.items()
                for number, each in enumerate(runs)
                for done in each
            ]
    run.series("flows", rows)
    run.notes.append(
        f"{HOSTS} hosts of {HOST_MBIT:g} Mbit/s in each of {len(LEAVES)} racks, spines of "
        f"{', '.join(f'{mbit:g}' for mbit in SPINES.values())} Mbit/s to each. Sizes are a tenth of those of a web "
        "search (DCTCP, SIGCOMM 2010), rates a two-thousandth. A flow's time runs from its planned moment to its "
        "last byte, with the handshake of its connection. Ratios are of the same percentile over one switch."
    )


def _plan(run: Run, load: str, number: int, seconds: float) -> list[Flow]:
    """Plan the flows of one turn, the same for all networks."""
    chance = random.Random(f"{run.seed} {load} {number}")
    racks = [range(rack * HOSTS, (rack + 1) * HOSTS) for rack in range(len(LEAVES))]
    return flows(chance, racks, LOADS[load] * HOST_MBIT, seconds)


def _measure(run: Run, kind: str, plan: Sequence[Flow], turn: str) -> list[Done]:
    with contextlib.ExitStack() as stack:
        with run.step(f"{turn}: {kind}"):
            hosts = stack.enter_context(NETWORKS[kind]())
            for host in hosts:
                log = host.place.name
                server = Process(
                    catalog.argv("http1", [host.address]),
                    log=run.folder / f"server-{log}",
                    namespace=host.place.name,
                )
                stack.enter_context(server)
                server.wait_output(catalog.READY)
            _reach_all(hosts)
        with run.step(f"{turn}: {kind}, {len(plan)} flows"):
            return _fetch(run, hosts, plan)


def _fetch(run: Run, hosts: Sequence[RackHost], plan: Sequence[Flow]) -> list[Done]:
    """Have each host fetch its flows."""
    done: list[Done] = []
    first = time.monotonic() + LEAD_S
    with contextlib.ExitStack() as stack:
        clients = []
        for place, host in enumerate(hosts):
            own = [flow for flow in plan if flow.client == place]
            if not own:
                continue
            planned = [PlannedFetch(first + flow.at, hosts[flow.server].address, flow.bytes) for flow in own]
            file = run.folder / f"plan-{host.place.name}.json"
            file.write_text(json.dumps([asdict(each) for each in planned]))
            stack.callback(file.unlink)
            argv = [sys.executable, "-m", "braid_lab.clients.flow_mix", str(file)]
            client = Process(argv, log=file.with_suffix(""), namespace=host.place.name)
            clients.append((own, stack.enter_context(client)))
        for own, client in clients:
            status = client.wait(timeout=LEAD_S + max(flow.at for flow in plan) + LINGER_S + 10).status
            if status:
                raise LabError(f"a client ended with status {status}: {client.stderr()}")
            times: list[float | None] = json.loads(client.stdout())
            done += [Done(flow, seconds) for flow, seconds in zip(own, times, strict=True)]
    return done


def _reach_all(hosts: Sequence[RackHost]) -> None:
    """Have all hosts find each other's addresses, and the network find all hosts."""
    for one, other in itertools.permutations(hosts, 2):
        one.place.run(["ping", "-c", "1", "-W", "5", other.address])


@contextlib.contextmanager
def _with_edges() -> Iterator[list[RackHost]]:
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(edged_network(leaf_spine(edges=True)))
        racks = fill_racks(stack, network.net, HOSTS, _host_line())
        for source, target in itertools.combinations(network.net.stations, 2):
            network.settle(source, target, len(SPINES))
        yield [host for rack in racks for host in rack]


@contextlib.contextmanager
def _hashed() -> Iterator[list[RackHost]]:
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(ovs_network(leaf_spine(edges=False)))
        hash_over_spines(net, LEAVES, tuple(SPINES))
        yield _filled(stack, net)


@contextlib.contextmanager
def _unlimited() -> Iterator[list[RackHost]]:
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(ovs_network(one_switch()))
        net.ofctl("add-flow", "X", "actions=NORMAL")
        yield _filled(stack, net)


def _filled(stack: contextlib.ExitStack, net: OvsNetwork) -> list[RackHost]:
    return [host for rack in fill_racks(stack, net, HOSTS, _host_line()) for host in rack]


def _host_line() -> LinkSpec:
    return LinkSpec(rate=f"{HOST_MBIT:g}Mbit/s", delay=f"{DELAY_MS:g}ms")


NETWORKS: dict[str, Callable[[], contextlib.AbstractContextManager[list[RackHost]]]] = {
    "fabric": _with_edges,
    "ecmp": _hashed,
    "one_switch": _unlimited,
}


def _record(run: Run, load: str, found: dict[str, list[list[Done]]]) -> None:
    suffix = "" if load == PLAIN else f"_{load}"
    measures: dict[str, Callable[[list[Done]], float]] = {
        "fct_p50": lambda done: percentile(_seconds(done), 0.5),
        "fct_p99": lambda done: percentile(_seconds(done), 0.99),
        "fct_short_p99": lambda done: percentile(_seconds([one for one in done if one.flow.bytes < SHORT]), 0.99),
        "fct_long_mean": lambda done: statistics.fmean(_seconds([one for one in done if one.flow.bytes > LONG])),
    }
    for kind in KINDS:
        every = [one for each in found[kind] for one in each]
        missing = sum(one.seconds is None for one in every)
        values = [f"{1000 * of(every):.0f}" for of in measures.values()]
        run.table.append([load, kind, str(len(every)), *values, str(missing)])
        run.figure(f"did_not_end_{kind}{suffix}", missing, better="lower")
        if kind == "one_switch":
            continue
        name = "" if kind == "fabric" else f"_{kind}"
        for figure, of in measures.items():
            pairs = zip(found[kind], found["one_switch"], strict=True)
            run.measure(
                f"{figure}_ratio{name}{suffix}", [of(one) / of(ideal) for one, ideal in pairs], better="lower"
            )
    with run.plot(f"fct-{load}") as plot:
        axes = plot.subplots()
        for kind in KINDS:
            times = sorted(_seconds([one for each in found[kind] for one in each]))
            axes.step(
                times, [(place + 1) / len(times) for place in range(len(times))], label=kind, color=COLOUR[kind]
            )
        axes.set(xscale="log", xlabel="completion time, s", ylabel="share of flows", ylim=(0, 1))
        axes.legend()


def _seconds(done: Sequence[Done]) -> list[float]:
    """Return the times of those that ended; one that did not counts with all the time that it had."""
    return [LINGER_S if one.seconds is None else one.seconds for one in done]
