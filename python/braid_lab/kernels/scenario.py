"""A scenario that covers all of Braid once, on the running kernel; written for slow virtual machines.

`python -m braid_lab.kernels.scenario RESULTS [CHECK…]` writes a line of JSON per check as soon as it is over: its
name, its state (passed, left out, failed), the reason, and its duration. Nothing here measures time: a machine
without hardware acceleration is about twenty times slower, so checks wait for conditions.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from braid_lab import remote_hub
from braid_lab.fabric.routed_sites import routed
from braid_lab.fabric.shapes import Wire
from braid_lab.fixtures import serve
from braid_lab.kernels.results import LeftOut, Result
from braid_lab.net import scratch
from braid_lab.net.faults import black_hole, unplugged
from braid_lab.net.links import LinkSpec
from braid_lab.net.remote_host import remote_host
from braid_lab.net.topology import Topology, UplinkSpec, network
from braid_lab.observe import ask_tcp, ask_udp, by_uplink, differences, kernel_state, states
from braid_lab.process import LabError, Process, run, wait_until
from braid_lab.product import DEGRADED, Braid, binary

#: Time limit of any step on a machine that loads programs of 300,000 instructions under emulation.
CHECK_TIMEOUT_SECONDS = 120.0

#: Two emulated lines, which can become black holes and lose their carrier; slow enough for an emulated processor.
LINE = LinkSpec(rate="8Mbit/s", delay="10ms", queue="200ms")
LINES = (UplinkSpec("dsl", LINE), UplinkSpec("lte", LINE))
PLAIN = (UplinkSpec("dsl", offload=False), UplinkSpec("lte", offload=False))

#: The host behind the second edge.
HOST_B = "10.81.2.7"

Check = Callable[[], None]
CHECKS: dict[str, Check] = {}


def check(body: Check) -> Check:
    """Register a check by its function's name."""
    CHECKS[body.__name__] = body
    return body


@contextlib.contextmanager
def host(
    *options: str, uplinks: tuple[UplinkSpec, ...] = PLAIN, lan_clients: int = 0
) -> Iterator[tuple[Topology, Braid]]:
    """Run Braid on a host with two uplinks and servers beyond, and check that `braid down` leaves nothing behind."""
    with network(uplinks, lan_clients=lan_clients) as net:
        serve(net, "http1", "dns")
        before = kernel_state(net.host)
        daemon = Braid(net.host, net.scratch / f"braid-{net.host.name}")
        try:
            daemon.call("up", *options, timeout=CHECK_TIMEOUT_SECONDS)
            yield net, daemon
        finally:
            said = daemon.call("down", check=False, timeout=CHECK_TIMEOUT_SECONDS)
        expect(said.status == 0, f"braid down ends with {said.status}: {said.text}")
        # Conntrack and routing settings of a namespace appear with the modules that are loaded for Braid.
        left = [each for each in differences(before, kernel_state(net.host)) if not each.startswith("sysctls: +")]
        if left:
            raise LabError("braid down leaves: " + "; ".join(left))


def expect(good: object, what: str) -> None:
    """Raise LabError with a description unless `good`."""
    if not good:
        raise LabError(what)


def both_carry(net: Topology, counts: dict[str, int], what: str) -> None:
    """Require that both uplinks carried some of these flows."""
    expect(all(counts[name] for name in net.uplinks), f"{what}: flows by uplink are {counts}")


@check
def doctor() -> None:
    """`braid doctor` loads the programs without attaching them and finds no problem."""
    with network(PLAIN) as net:
        daemon = Braid(net.host, net.scratch / "doctor")
        said = daemon.call("doctor", check=False, timeout=CHECK_TIMEOUT_SECONDS)
        expect(said.status in (0, DEGRADED), f"braid doctor ends with {said.status}: {said.text}")
        expect("FAIL" not in said.stdout, said.stdout)


def _everything_passes(net: Topology, daemon: Braid) -> None:
    place = net.clients[0] if net.clients else net.host
    for family in (4, 6):
        server = net.server(1, family)
        both_carry(net, by_uplink(net, ask_tcp(place, 6, server)), f"TCP over IPv{family}")
        sockets = ask_udp(place, 6, *net.servers(family)[:2])
        expect(all(len(set(socket)) == 1 for socket in sockets), f"UDP mappings over IPv{family}: {sockets}")
        both_carry(net, by_uplink(net, [socket[0] for socket in sockets]), f"UDP over IPv{family}")
        pinged = place.run(["ping", "-c", "2", "-W", "5", server], check=False, timeout=CHECK_TIMEOUT_SECONDS)
        expect(pinged.status == 0, f"ping over IPv{family}: {pinged.text}")
        fetched = place.run(
            ["curl", "-sSf", "-o", "/dev/null", _url(server, 300_000)], check=False, timeout=CHECK_TIMEOUT_SECONDS
        )
        expect(fetched.status == 0, f"download over IPv{family}: {fetched.text}")
    expect(daemon.json("flows")["flows"] is not None, "braid flows says nothing")


def _url(server: str, size: int) -> str:
    at = f"[{server}]" if ":" in server else server
    return f"http://{at}/bytes/{size}"


@check
def host_flows() -> None:
    """TCP, UDP, ping and a download of a host, IPv4 and IPv6, use both uplinks."""
    with host("--policy", "rr") as (net, daemon):
        _everything_passes(net, daemon)


@check
def gateway_flows() -> None:
    """The same for a client behind a gateway."""
    with host("--policy", "rr", lan_clients=1) as (net, daemon):
        _everything_passes(net, daemon)


@check
def race() -> None:
    """Connections work under both policies that race, and their flows are marked so."""
    for policy in ("race", "fastest"):
        with host("--policy", policy) as (net, daemon):
            for family in (4, 6):
                seen = ask_tcp(net.host, 4, net.server(1, family))
                expect(len(seen) == 4, f"{policy}, IPv{family}: {seen}")
                reasons = {each["why"] for each in _tcp_flows(daemon)}
                expect("won the race" in reasons, f"{policy}, IPv{family}: flows are where they are by {reasons}")


@check
def clsact() -> None:
    """The hook of kernels before TCX carries flows, too."""
    with _configured('[datapath]\nhook = "clsact"\n') as (net, daemon):
        expect("clsact" in net.host.run(["tc", "qdisc", "show"]).stdout, "no clsact qdisc is there")
        both_carry(net, by_uplink(net, ask_tcp(net.host, 6, net.server())), "TCP by clsact")
        expect(daemon.json("status"), "no status")


@check
def tcx() -> None:
    """TCX links carry flows where the kernel has them."""
    major, minor = (int(part) for part in Path("/proc/sys/kernel/osrelease").read_text().split(".")[:2])
    if (major, minor) < (6, 6):
        raise LeftOut("TCX came with Linux 6.6")
    with _configured('[datapath]\nhook = "tcx"\n') as (net, _):
        # bpftool before 7.3 does not know TCX; the missing clsact qdisc shows it.
        expect("clsact" not in net.host.run(["tc", "qdisc", "show"]).stdout, "a clsact qdisc is there")
        both_carry(net, by_uplink(net, ask_tcp(net.host, 6, net.server())), "TCP by TCX")


@contextlib.contextmanager
def _configured(text: str) -> Iterator[tuple[Topology, Braid]]:
    file = scratch.directory() / "scenario.toml"
    file.write_text(f'policy = "rr"\n{text}')
    with host("--config", str(file)) as made:
        yield made


@check
def without_jit() -> None:
    """Interpreted programs do the same."""
    switch = Path("/proc/sys/net/core/bpf_jit_enable")
    if not switch.exists():
        raise LeftOut("this kernel has no BPF JIT: all other checks ran without it")
    before = switch.read_text()
    try:
        switch.write_text("0")
    except OSError as error:
        raise LeftOut("this kernel cannot do without its BPF JIT (CONFIG_BPF_JIT_ALWAYS_ON)") from error
    try:
        with host("--policy", "rr", lan_clients=1) as (net, daemon):
            _everything_passes(net, daemon)
    finally:
        switch.write_text(before)


@check
def silence() -> None:
    """A line that becomes a black hole is left, and used again once it is back."""
    with host("--policy", "rr", uplinks=LINES) as (net, daemon):
        both_carry(net, by_uplink(net, ask_tcp(net.host, 6, net.server())), "TCP")
        with black_hole(net.uplinks["dsl"]):
            wait_until(lambda: states(daemon)["dsl"] == "dead", what="dsl to be dead", timeout=CHECK_TIMEOUT_SECONDS)
            counts = by_uplink(net, ask_tcp(net.host, 6, net.server()))
            expect(counts == {"dsl": 0, "lte": 6}, f"with dsl dead: {counts}")
        wait_until(lambda: states(daemon)["dsl"] == "up", what="dsl to return", timeout=CHECK_TIMEOUT_SECONDS)


@check
def carrier() -> None:
    """A line without carrier is left at once, and its open connections end."""
    with host("--policy", "rr", uplinks=LINES) as (net, daemon):
        slow = ["curl", "-sS", "--limit-rate", "20K", "-o", "/dev/null", _url(net.server(), 2_000_000)]
        with contextlib.ExitStack() as stack:
            downloads = [
                stack.enter_context(Process(slow, log=net.scratch / f"slow{number}", namespace=net.host.name))
                for number in range(2)
            ]
            wait_until(lambda: len(_tcp_flows(daemon)) == 2, what="both downloads", timeout=CHECK_TIMEOUT_SECONDS)
            with unplugged(net.uplinks["dsl"]):
                wait_until(
                    lambda: states(daemon)["dsl"] in ("dead", "down"), what="dsl to go", timeout=CHECK_TIMEOUT_SECONDS
                )
                counts = by_uplink(net, ask_tcp(net.host, 4, net.server()))
                expect(counts == {"dsl": 0, "lte": 4}, f"with dsl unplugged: {counts}")
                ended = wait_until(
                    lambda: [each for each in downloads if not each.running],
                    what="the download over dsl to be told",
                    timeout=CHECK_TIMEOUT_SECONDS,
                )
                expect(len(ended) == 1, "both downloads ended")
            wait_until(lambda: states(daemon)["dsl"] == "up", what="dsl to return", timeout=CHECK_TIMEOUT_SECONDS)


def _tcp_flows(daemon: Braid) -> list[dict[str, Any]]:
    return [each for each in daemon.json("flows")["flows"] if each["protocol"] == "tcp"]


@check
def crash() -> None:
    """Flows go on and new ones open while no daemon runs, and the next daemon takes over."""
    with host("--policy", "rr") as (net, daemon):
        both_carry(net, by_uplink(net, ask_tcp(net.host, 4, net.server())), "TCP")
        daemon.kill9()
        both_carry(net, by_uplink(net, ask_tcp(net.host, 4, net.server())), "TCP without a daemon")
        daemon.call("up", "--policy", "rr", timeout=CHECK_TIMEOUT_SECONDS)
        both_carry(net, by_uplink(net, ask_tcp(net.host, 4, net.server())), "TCP by the next daemon")


@check
def bond() -> None:
    """A hub invites, a host joins, and one download arrives complete over both links."""
    _inet_tables()
    size = 3_000_000
    with (
        host(uplinks=LINES) as (net, daemon),
        remote_host(net) as far,
        remote_hub.running_hub(far, net.scratch / "hub") as hub,
    ):
        daemon.call("join", hub.invite("home"), timeout=CHECK_TIMEOUT_SECONDS)
        wait_until(
            lambda: states(daemon).get("bond") == "up", what="the bond to take flows", timeout=CHECK_TIMEOUT_SECONDS
        )
        wait_until(lambda: len(_links(daemon)) == 2, what="both links to carry", timeout=CHECK_TIMEOUT_SECONDS)
        target = net.scratch / "bonded"
        words = [
            "curl",
            "-sSf",
            "--max-time",
            str(CHECK_TIMEOUT_SECONDS),
            _url(net.server(), size),
            "-o",
            str(target),
        ]
        net.host.run(words, timeout=CHECK_TIMEOUT_SECONDS + 10)
        expect(target.stat().st_size == size, f"{target.stat().st_size} of {size} bytes came")
        (seen, _), *_ = ask_tcp(net.host, 1, net.server())
        expect(seen == far.address4, f"the flow came from {seen} and not from the hub")
        carried = {link["uplink"]: link["rx_bytes"] for link in daemon.json("bond")["links"]}
        expect(all(each > size / 10 for each in carried.values()), f"received by link: {carried}")
        daemon.call("leave", timeout=CHECK_TIMEOUT_SECONDS)


def _inet_tables() -> None:
    """Leave out checks of the hub's filter on kernels built without it; `braid hub` names the remedy."""
    with network(PLAIN) as net:
        wanted = "table inet braid_lab {\n chain leave {\n type nat hook postrouting priority srcnat\n }\n}\n"
        said = net.internet.run(["nft", "-f", "-"], text=wanted, check=False)
    if said.status != 0:
        raise LeftOut(f"this kernel has no address translation for IPv4 and IPv6 in one table: {said.text}")


def _links(daemon: Braid) -> list[str]:
    told = daemon.json("bond")["links"]
    return [link["uplink"] for link in told if link["state"] in ("active", "returning")]


@check
def edge() -> None:
    """Two edges split and join a flow over two layer-3 paths, IPv4 and IPv6."""
    with routed([Wire("A", "B", 8, 5), Wire("A", "B", 8, 10)]) as sites:
        sites.use((1, 2), (8.0, 8.0))
        source, target = sites.stations["ha"].place, sites.stations["hb"].place
        for address in (HOST_B, "fd81:2::7"):
            said = source.run(["ping", "-c", "3", "-W", "5", address], check=False, timeout=CHECK_TIMEOUT_SECONDS)
            expect(said.status == 0, f"ping {address}: {said.text}")
        code = f"import http.server as h; h.HTTPServer(('{HOST_B}', 80), h.SimpleHTTPRequestHandler).serve_forever()"
        folder = sites.folder / "www"
        folder.mkdir()
        (folder / "file").write_bytes(bytes(2_000_000))
        words = ["env", "-C", str(folder), sys.executable, "-c", code]
        with Process(words, log=sites.folder / "www-log", namespace=target.name):
            wait_until(
                lambda: ":80 " in target.run(["ss", "-ltn"]).stdout, what="the server", timeout=CHECK_TIMEOUT_SECONDS
            )
            got = sites.folder / "got"
            source.run(["curl", "-sSf", "-o", str(got), f"http://{HOST_B}/file"], timeout=CHECK_TIMEOUT_SECONDS)
            expect(got.stat().st_size == 2_000_000, f"{got.stat().st_size} of 2000000 bytes came")
        packets = sites.edges["hb"].sent_to("ha-4")
        expect(len(packets) == 2 and min(packets) > 100, f"packets by path: {packets}")


@check
def command_line() -> None:
    """`braid version` names this kernel."""
    said = run([binary(), "version"], timeout=CHECK_TIMEOUT_SECONDS).stdout
    expect(Path("/proc/sys/kernel/osrelease").read_text().strip() in said, said)


def main() -> None:
    """Run the named checks, or all; exit 0 whatever the results."""
    results, *names = sys.argv[1:]
    with Path(results).open("w") as out:
        for name in names or CHECKS:
            began = time.monotonic()
            state, reason = "passed", ""
            try:
                CHECKS[name]()
            except LeftOut as error:
                state, reason = "left out", str(error)
            except Exception as error:
                state, reason = "failed", str(error) or type(error).__name__
                traceback.print_exc()
            done = Result(name, state, reason, round(time.monotonic() - began, 1))
            out.write(json.dumps(done.__dict__) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
