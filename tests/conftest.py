"""Fixtures of all end-to-end tests: a network of namespaces, and the real programs."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from braid_lab import remote_hub
from braid_lab.datapath import DATAPATHS, Datapath
from braid_lab.experiments.balance.uplink_failure import Location
from braid_lab.fabric.edges import SplitFlow
from braid_lab.fabric.ovs import OvsNetwork
from braid_lab.fixtures import serve
from braid_lab.net.faults import black_hole, unplugged
from braid_lab.net.links import LinkSpec
from braid_lab.net.open_vswitch import on_datapath
from braid_lab.net.remote_host import remote_host
from braid_lab.net.topology import Topology, UplinkSpec, network
from braid_lab.process import Process, wait_until
from braid_lab.product import Braid, binary
from braid_lab.remote_hub import Hub

#: Two plain uplinks with offloads off: packets have real sizes and checksums, so errors in them show.
PLAIN = (UplinkSpec("dsl", offload=False), UplinkSpec("lte", offload=False))

#: For tests that are not about one datapath.
on_every_datapath = pytest.mark.parametrize("datapath", DATAPATHS, indirect=True)
#: For those that count on it that the next flow takes the next slot; a group takes them by a hash.
on_datapaths_in_turn = pytest.mark.parametrize("datapath", ["ebpf", "packet-in"], indirect=True)

MakeNetwork = Callable[..., Topology]
StartBraid = Callable[..., Braid]
StartHub = Callable[[Topology], Hub]


def pytest_configure() -> None:
    """Fail if requirements of all tests are missing: a skipped test would look like a passed one."""
    if os.geteuid() != 0:
        pytest.exit("the end-to-end tests build network namespaces and need root", returncode=1)
    binary()
    # pytest unwinds only on KeyboardInterrupt.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A shell's background job ignores it, and so would programs that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: Tests that `--brief` leaves out, with the reasons.
THOROUGH = Path(__file__).with_name("thorough.txt")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Have the option by which `make test` stays short."""
    parser.addoption("--brief", action="store_true", help="leave out what tests/thorough.txt names")


def thorough() -> dict[str, re.Pattern[str]]:
    """Return each line that names tests of pytest, with the pattern of their ids."""
    lines = [line for line in THOROUGH.read_text().splitlines() if line.startswith("tests/")]
    return {line: re.compile(re.escape(line).replace(r"\*", ".*")) for line in lines}


#: Lines of that file that name no test of the files that were collected.
STALE = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the thorough tests if that was asked for."""
    named = {line: {item.nodeid for item in items if ids.fullmatch(item.nodeid)} for line, ids in thorough().items()}
    files = {item.nodeid.partition("::")[0] for item in items}
    config.stash[STALE] = [line for line, ids in named.items() if line.partition("::")[0] in files and not ids]
    if config.option.brief:
        left_out = set().union(*named.values())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]


def pytest_collection_finish() -> None:
    """Have Python's garbage collector leave alone what all tests share, and look at the rest less often.

    Otherwise it goes through all collected tests again and again: a fifth of the time of tests/sdn.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


#: Tests that one worker runs in sequence, by file or by test. They share fixtures of a file, or use resources of the
#: machine: control groups, and leftovers that `braid-lab clean` finds.
TOGETHER = {
    "tests/lab/test_balance_datapath.py": "balance",
    "tests/fabric/test_edge.py": "edge",
    "tests/fabric/test_edge_auth.py": "edge key",
    "tests/fabric/test_edge_l3_paths.py": "edge routed",
    "tests/fabric/test_edge_shim.py": "edge shim",
    "tests/fabric/test_fabric.py": "fabric",
    "tests/fabric/test_fabric_cluster.py": "fabric cluster",
    "tests/fabric/test_fabric_policies.py": "fabric policies",
    "tests/fabric/test_fabric_tenants.py": "fabric tenants",
    "tests/balance/test_lan_attacker.py": "hostile",
    "tests/balance/test_dns_snooping.py": "lying names",
    "tests/balance/test_nat.py": "nat",
    "tests/system/test_debian_packages.py": "package",
    "tests/balance/test_braid_run.py": "control groups",
    **{
        f"tests/balance/test_rules.py::test_braid_run_keeps_a_program_on_its_uplink[{kind}]": "control groups"
        for kind in DATAPATHS
    },
    "tests/lab/test_lab.py": "clean",
}


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Schedule each test on any free worker, but tests of a group on one worker.

    pytest-xdist's own groups have no effect under pytest 9.2: xdist marks them in the tests' ids, which it can no
    longer change.
    """

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER.get(nodeid) or TOGETHER.get(nodeid.partition("::")[0]) or nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Run tests of a group on one worker, whatever `--dist` says."""
    return Together(config, log)


@pytest.fixture
def datapath(request: pytest.FixtureRequest) -> Iterator[Datapath]:
    """The datapath of a test's daemons: eBPF, unless the test asks for others by `on_every_datapath` or the like."""
    kind: Datapath = getattr(request, "param", "ebpf")
    with on_datapath(kind):
        yield kind


@pytest.fixture
def make_network(datapath: Datapath) -> Iterator[MakeNetwork]:  # noqa: ARG001
    """Build networks with HTTP/1.1 and DNS servers, which are removed after the test."""
    with contextlib.ExitStack() as stack:

        def make(*uplinks: UplinkSpec, lan_clients: int = 0, serving: tuple[str, ...] = ("http1", "dns")) -> Topology:
            net = stack.enter_context(network(uplinks or PLAIN, lan_clients=lan_clients))
            serve(net, *serving)
            return net

        yield make


@pytest.fixture
def net(make_network: MakeNetwork) -> Topology:
    """A host with two plain uplinks."""
    return make_network()


#: True for tests that have failed.
HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have fixtures know whether their test has failed."""
    report = yield
    if report.when == "call":
        item.stash[HAS_FAILED] = report.failed
    return report


def tell_events(request: pytest.FixtureRequest, daemon: Braid) -> None:
    """Add a daemon's events to the report if the test has failed."""
    if request.node.stash.get(HAS_FAILED, False):
        request.node.add_report_section("teardown", "braid events", daemon.call("events", check=False).text)


@pytest.fixture
def start_braid(datapath: Datapath, request: pytest.FixtureRequest) -> Iterator[StartBraid]:  # noqa: ARG001
    """Start daemons by `braid up OPTIONS…` on a network's host; `braid down` follows at the test's end."""
    with contextlib.ExitStack() as stack:

        def start(net: Topology, *options: str | Path) -> Braid:
            daemon = Braid(net.host, net.scratch / f"braid-{net.host.name}")
            stack.callback(daemon.end)
            stack.callback(tell_events, request, daemon)
            daemon.up(*options)
            return daemon

        yield start


@pytest.fixture
def start_hub() -> Iterator[StartHub]:
    """Start a hub on a remote machine in a network's internet."""
    with contextlib.ExitStack() as stack:

        def start(net: Topology) -> Hub:
            far = stack.enter_context(remote_host(net))
            return stack.enter_context(remote_hub.running_hub(far, net.scratch / far.namespace.name))

        yield start


def configured(net: Topology, text: str) -> Path:
    """Write the configuration of a network's host, and return its file."""
    file = net.scratch / f"{net.host.name}.toml"
    file.write_text(text)
    return file


def check_transfers(net: Topology, family: int) -> tuple[int, int]:
    """Check that two downloads and two uploads of the host arrive whole; return the bytes of one of each."""
    down, body = 3_000_000, net.scratch / "body"
    body.write_bytes(bytes(range(256)) * 8192)
    up = body.stat().st_size
    server = net.server(1, family) if family == 4 else f"[{net.server(1, family)}]"
    # Two flows of each kind, so that each uplink has one. The server sends zeros.
    for _ in range(2):
        net.host.run(["curl", "-sSf", f"http://{server}/bytes/{down}", "-o", net.scratch / "got"])
        assert (net.scratch / "got").read_bytes() == bytes(down)
    for _ in range(2):
        sent = net.host.run(["curl", "-sSf", "--data-binary", f"@{body}", f"http://{server}/sink"])
        assert sent.stdout == f"{up}\n"
    return down, up


def came_in_order(flow: SplitFlow) -> None:
    """Check that a flow of 14 Mbit/s, more than either of two paths of 10 Mbit/s carries, arrived in order."""
    assert flow.transfer.steady(2) > 12
    # One path takes what the other cannot: 4 Mbit/s of 14 at least.
    assert min(flow.packets) > 0.25 * sum(flow.packets)
    # Packets did arrive out of order at the edge, as none would by one path; the host did not notice.
    assert flow.held > 0.1 * sum(flow.packets)
    assert flow.transfer.out_of_order <= 0.001 * sum(flow.packets)
    assert flow.transfer.counters["TcpRetransSegs"] <= 0.001 * sum(flow.packets)


@contextlib.contextmanager
def nothing_lost(net: OvsNetwork, source: str, target: str, *, log: str) -> Iterator[None]:
    """Ping every millisecond for the length of a block; each one is answered, and once.

    An error says how many packets the kernel has dropped in front of Open vSwitch meanwhile. Its sockets have room
    for some hundred, and a busy machine keeps it from the processor for longer; but so does a controller that has
    too much to say, so these count as well.
    """
    argv = ["ping", "-i", "0.001", "-W", "1", net.stations[target].address]
    dropped = dropped_for_switches(net)
    with Process(argv, log=net.folder / log, namespace=net.stations[source].place.name) as pinging:
        wait_until(lambda: "time=" in pinging.stdout(), what="the first answer", timeout=20)
        yield
        # On a busy machine few pings are sent in a short block.
        wait_until(lambda: pinging.stdout().count("time=") > 100, what="enough answers", timeout=20)
        pinging.signal(signal.SIGINT)
        said = pinging.wait().stdout
    found = re.search(r"(\d+) packets transmitted, (\d+) received", said)
    assert found, said[-400:]
    assert "+" not in said.splitlines()[-2]
    dropped = dropped_for_switches(net) - dropped
    # Some kernels cut the last one off that was under way when it was told to end.
    assert int(found[1]) - int(found[2]) <= 1, f"{dropped} dropped in front of switches"


def dropped_for_switches(net: OvsNetwork) -> int:
    """Return how many packets the kernel has dropped since the packet sockets of Open vSwitch were full."""
    sockets = net.place.run(["ss", "--packet", "--numeric", "--memory"]).stdout
    return sum(int(each) for each in re.findall(r"skmem:\(.*,d(\d+)\)", sockets))


#: For tests that count flows per uplink, but are not about the policy.
ROUND_ROBIN = ("--policy", "rr")

#: Two emulated lines, which can become black holes and lose their carrier.
LINE = LinkSpec(rate="40Mbit/s", delay="10ms", queue="100ms")
LINES = (UplinkSpec("dsl", LINE), UplinkSpec("lte", LINE))


@pytest.fixture(params=[4, 6], ids=["ipv4", "ipv6"])
def family(request: pytest.FixtureRequest) -> int:
    """Each IP version in turn."""
    version: int = request.param
    return version


#: Both locations, IP versions and faults, in pairs. All eight combinations would prove little more and take long;
#: `balance/failover` tries them all.
PAIRS_OF_LOCATION_FAMILY_AND_FAULT = {
    "host-ipv4-silent": ("host", 4, black_hole),
    "host-ipv6-unplugged": ("host", 6, unplugged),
    "gateway-ipv4-unplugged": ("gateway", 4, unplugged),
    "gateway-ipv6-silent": ("gateway", 6, black_hole),
}
each_pair_of_location_family_and_fault = pytest.mark.parametrize(
    ("location", "family", "how"),
    [pytest.param(*values, id=name) for name, values in PAIRS_OF_LOCATION_FAMILY_AND_FAULT.items()],
    indirect=["location", "family"],
)


@pytest.fixture(params=["host", "gateway"])
def location(request: pytest.FixtureRequest, make_network: MakeNetwork) -> Location:
    """An application on the host, then one behind it, with two emulated lines."""
    clients = 1 if request.param == "gateway" else 0
    return Location(request.param, make_network(*LINES, lan_clients=clients, serving=("http1", "http3", "dns")))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """The folder of screenshots: that of `make screenshots`, or one that nobody looks at."""
    folder = Path(os.environ.get("BRAID_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
