"""The race on real packets: the SYN that returns first chooses the uplink, and no connection is left waiting."""

from __future__ import annotations

import contextlib
import errno
import itertools
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from braid_lab.clients.fetch import Fetched
from braid_lab.experiments.race.half_open import left_over
from braid_lab.experiments.race.trial import Amount, fetch
from braid_lab.fixtures import run_client
from braid_lab.net.faults import black_hole
from braid_lab.net.links import LinkSpec
from braid_lab.net.namespace import Namespace
from braid_lab.net.open_vswitch import on_datapath
from braid_lab.net.tcp_counters import tcp_counters
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.observe import ask_tcp, ask_udp, by_uplink
from braid_lab.process import Process, wait_until
from braid_lab.product import Braid
from braid_lab.servers import catalog
from braid_lab.servers.catalog import HTTP_PORT
from conftest import MakeNetwork, StartBraid, configured

#: Round trips of 50 and 16 ms; round robin would take the slow one first.
SLOW, QUICK = LinkSpec(delay="25ms"), LinkSpec(delay="8ms")
LINES = (UplinkSpec("dsl", SLOW), UplinkSpec("lte", QUICK))
#: The third replies so late that the others' replies come first, on a busy machine, too.
SILENT = (UplinkSpec("dsl", QUICK), UplinkSpec("lte", QUICK), UplinkSpec("sat", LinkSpec(delay="100ms")))

#: No health checks, so that the race alone has to cope, and known destinations are not raced again.
RACE = 'policy = "race"\n[race]\nexplore_one_in = 0\n[liveness]\nenabled = false\n'

#: Less than the time after which a SYN is repeated (1 s), more than any round trip here on a busy machine.
AT_ONCE_S = 0.8

SYN = "tcp flags & (syn | ack) == syn"


@dataclass(frozen=True)
class Racing:
    """A network whose internet answers everywhere, with Braid on its host, and the connecting client."""

    net: Topology
    daemon: Braid
    client: Namespace
    family: int

    def counted(self, *names: str) -> tuple[int, ...]:
        """Return Braid's counters of these reasons so far."""
        reasons = self.daemon.json("status")["reasons"]
        return tuple(reasons[name] for name in names)

    def expect(self, **reasons: int) -> None:
        """Wait until Braid has counted this; a controller of Open vSwitch tells its counters once a second."""
        names = list(reasons)
        wanted = tuple(reasons.values())
        wait_until(lambda: self.counted(*names) == wanted, what=f"{reasons}, not {self.counted(*names)}")

    def connect(self, *addresses: str) -> list[Fetched]:
        return fetch(self.client, addresses, Amount(0, 1.0))

    def via(self, *addresses: str) -> dict[str, int]:
        """Connect to each in turn; return how often each uplink was taken."""
        return by_uplink(self.net, ask_tcp(self.client, 1, *addresses))


_prefixes = itertools.count(1)


def new_site(family: int) -> str:
    """Return an address in an unused prefix."""
    number = next(_prefixes)
    return f"81.{number // 250}.{number % 250}.1" if family == 4 else f"2001:db8:a{number:03x}::1"


@contextlib.contextmanager
def racing(net: Topology, daemon: Braid, family: int) -> Iterator[Racing]:
    net.internet.ip("route add local 81.0.0.0/8 dev lo", "route add local 2001:db8:a000::/36 dev lo")
    argv = catalog.argv("http1", ["0.0.0.0", "::"])  # noqa: S104 - every address is a site
    with Process(argv, log=net.scratch / f"sites-{net.host.name}", namespace=net.internet.name) as server:
        server.wait_output(catalog.READY)
        yield Racing(net, daemon, (net.clients or [net.host])[0], family)


@pytest.fixture(
    params=["ebpf-host-ipv4", "ebpf-gateway-ipv6", "packet-in-host-ipv4", "packet-in-gateway-ipv6"],
)
def race(request: pytest.FixtureRequest, make_network: MakeNetwork, start_braid: StartBraid) -> Iterator[Racing]:
    """Two lines, one of them faster, over each IP version, from the host and from behind it, by each datapath."""
    kind, where, version = request.param.rsplit("-", 2)
    with on_datapath(kind):
        net = make_network(*LINES, lan_clients=where == "gateway", serving=("dns", "http3"))
        daemon = start_braid(net, "--config", configured(net, RACE))
    with racing(net, daemon, int(version[-1])) as made:
        yield made


both_datapaths = pytest.fixture(params=["ebpf", "packet-in"])


@both_datapaths
def three(request: pytest.FixtureRequest, make_network: MakeNetwork, start_braid: StartBraid) -> Iterator[Racing]:
    """Three lines, two fast ones and a slow one, IPv4 from the host."""
    with on_datapath(request.param):
        net = make_network(*SILENT, serving=())
        daemon = start_braid(net, "--config", configured(net, RACE))
    with racing(net, daemon, 4) as made:
        yield made


def test_the_quicker_uplink_wins_and_nothing_is_left_of_the_losers(race: Racing) -> None:
    """[ofrp] §3.2: "The SYN/ACK packet returning the earliest represents […] the shortest RTT".

    "Finally, all the duplicated handshaking are closed, and the selected connection behaves like a normal [one]."
    """
    assert race.via(*(new_site(race.family) for _ in range(6))) == {"dsl": 0, "lte": 6}
    race.expect(race_begun=6, race_won=6)
    race.expect(race_lost=6)
    assert left_over(race.net.internet) == 0


def test_what_is_known_is_not_raced(race: Racing) -> None:
    site = new_site(race.family)
    assert race.via(site) == {"dsl": 0, "lte": 1}
    race.expect(race_lost=1)
    with tcp_counters([race.net.uplinks["dsl"]]) as count_tcp:
        assert race.via(*[site] * 5) == {"dsl": 0, "lte": 5}
        assert count_tcp().syns == 0
    race.expect(race_begun=1, path_remembered=5)


def test_what_is_not_tcp_follows_what_is_known(race: Racing) -> None:
    """Datagrams cannot be raced. The lab's servers share one prefix."""
    server = race.net.server(1, race.family)
    race.client.run(["ping", "-c", "1", "-W", "2", server])
    with race.client.inside(), socket.socket(socket.AF_INET6 if race.family == 6 else socket.AF_INET) as tcp:
        tcp.settimeout(5)
        tcp.connect((server, HTTP_PORT))
    race.expect(race_lost=1)
    sockets = ask_udp(race.client, 4, server)
    assert by_uplink(race.net, [seen for (seen,) in sockets]) == {"dsl": 0, "lte": 4}
    for _ in range(2):
        answers = run_client(race.client, "http3", server, "/address", "/bytes/50000")["answers"]
        assert answers[1]["bytes"] == 50_000
        address, port = answers[0]["text"].split()
        assert by_uplink(race.net, [(address, int(port))]) == {"dsl": 0, "lte": 1}


@pytest.mark.parametrize("family", [4, 6])
def test_quic_alone_finds_the_quicker_uplink(make_network: MakeNetwork, start_braid: StartBraid, family: int) -> None:
    """It cannot be raced: one connection tries each uplink, and all that follow know both round trips."""
    net = make_network(*LINES, serving=("dns", "http3"))
    daemon = start_braid(net, "--config", configured(net, RACE))
    taken = []
    for _ in range(6):
        [answer] = run_client(net.host, "http3", net.server(1, family), "/address")["answers"]
        address, port = answer["text"].split()
        [uplink] = [name for name, count in by_uplink(net, [(address, int(port))]).items() if count]
        taken.append(uplink)
    assert (sorted(taken[:2]), taken[2:]) == (["dsl", "lte"], ["lte"] * 4)
    [destination] = daemon.json("paths")["destinations"]
    found = {path["uplink"]: path["rtt_ms"] for path in destination["paths"]}
    assert found["dsl"] >= 50
    assert 16 <= found["lte"] < found["dsl"]


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("offload", [False, True])
def test_raced_connections_carry_data_whole(
    make_network: MakeNetwork, start_braid: StartBraid, family: int, offload: bool
) -> None:
    net = make_network(*(UplinkSpec(name, offload=offload) for name in ("dsl", "lte", "sat")), serving=())
    body, got = net.scratch / "body", net.scratch / "got"
    body.write_bytes(bytes(range(256)) * 800)
    with racing(net, start_braid(net, "--config", configured(net, RACE)), family) as made:
        # Cables of equal length: any of them may be first, and all reply at nearly the same time.
        for _ in range(10):
            site = new_site(family) if family == 4 else f"[{new_site(family)}]"
            net.host.run(["curl", "-sSf", "--max-time", "10", f"http://{site}/bytes/300000", "-o", got])
            assert got.read_bytes() == bytes(300_000)
            sent = net.host.run(
                ["curl", "-sSf", "--max-time", "10", "--data-binary", f"@{body}", f"http://{site}/sink"]
            )
            assert sent.stdout == f"{body.stat().st_size}\n"
        made.expect(race_begun=10)
        assert left_over(net.internet) == 0


def test_two_silent_uplinks_delay_nothing(three: Racing) -> None:
    with black_hole(three.net.uplinks["dsl"]), black_hole(three.net.uplinks["lte"]):
        got = three.connect(*(new_site(4) for _ in range(6)))
    assert [each.via for each in got] == [three.net.uplinks["sat"].address4] * 6
    assert max(each.connect_s for each in got) < AT_ONCE_S


@contextlib.contextmanager
def answering(net: Topology, verdict: str, *names: str) -> Iterator[None]:
    """Let the internet handle every SYN on these uplinks with `verdict` of nftables."""
    devices = ", ".join(f'"{net.uplinks[name].far.device}"' for name in names)
    net.internet.unlimit_icmp_errors()
    net.internet.run(
        ["nft", "-f", "-"],
        text="table inet answering {\n chain input {\n  type filter hook input priority 0\n"
        f"  iifname {{ {devices} }} {SYN} {verdict}\n }}\n}}\n",
    )
    try:
        yield
    finally:
        net.internet.run(["nft", "delete", "table", "inet", "answering"])


ERRORS = {
    "reject with tcp reset": errno.ECONNREFUSED,
    "reject with icmp type host-unreachable": errno.EHOSTUNREACH,
}
refusals = pytest.mark.parametrize("how", ERRORS)


@refusals
def test_one_refusal_is_not_an_answer(three: Racing, how: str) -> None:
    with answering(three.net, how, "dsl", "lte"):
        got = three.connect(*(new_site(4) for _ in range(4)))
    assert [each.via for each in got] == [three.net.uplinks["sat"].address4] * 4
    assert max(each.connect_s for each in got) < AT_ONCE_S
    three.expect(race_won=4)
    # A refusal that comes after the reply is the loser's, and counted as such.
    (refused,) = three.counted("race_refused")
    assert 4 <= refused <= 8


@refusals
def test_a_connection_that_all_refuse_is_refused_at_once(three: Racing, how: str) -> None:
    with answering(three.net, how, *three.net.uplinks):
        (got,) = three.connect(new_site(4))
    assert got.via is None
    assert got.ended - got.began < AT_ONCE_S, got
    assert (got.error or "").startswith(f"[Errno {ERRORS[how]}]"), got


#: Seconds after which Linux repeats a SYN.
SYN_AGAIN = 1.0


def lost_syn_is_repeated(race: Racing) -> bool:
    """Return whether a SYN is repeated on all uplinks after its first was dropped; False if the machine stalled."""
    begun, repeated, won = race.counted("race_begun", "race_repeated", "race_won")
    with race.client.inside(), socket.socket() as tcp, tcp_counters(list(race.net.uplinks.values())) as count_tcp:
        tcp.setblocking(False)
        with answering(race.net, "drop", *race.net.uplinks):
            began = time.monotonic()
            with contextlib.suppress(BlockingIOError):
                tcp.connect((new_site(4), HTTP_PORT))
            wait_until(lambda: count_tcp().syns >= 3, what="the first SYN by all uplinks")
        if time.monotonic() - began > SYN_AGAIN:
            return False
        wait_until(lambda: race.counted("race_won") == (won + 1,), what="an answer to the repeated SYN")
        if race.counted("race_repeated") > (repeated + 1,):
            return False
        wait_until(lambda: count_tcp().syns == 6, what="the repeated SYN by all uplinks")
    race.expect(race_begun=begun + 1, race_repeated=repeated + 1)
    return True


def test_a_syn_that_is_lost_is_repeated_on_all(three: Racing) -> None:
    """A machine that stalls for a second repeats it once too often; then another one is tried."""
    assert any(lost_syn_is_repeated(three) for _ in range(5))


def test_private_destinations_are_not_raced(three: Racing) -> None:
    private = ["10.77.0.1", "172.16.9.1", "192.168.77.1"]
    three.net.internet.ip(*(f"address add {each}/32 dev lo" for each in private))
    with tcp_counters(list(three.net.uplinks.values())) as count_tcp:
        assert sum(three.via(*private).values()) == 3
        assert count_tcp().syns == 3
    three.expect(race_begun=0)


def test_syns_with_data_are_not_raced(three: Racing) -> None:
    """TCP Fast Open (RFC 7413): data sent twice could be acted on twice."""
    # Clients send data without a cookie, and servers accept it, on every listener.
    for location in (three.net.host, three.net.internet):
        location.sysctl(ipv4__tcp_fastopen=0x1 | 0x2 | 0x4 | 0x200 | 0x400)
    with three.client.inside(), socket.socket() as tcp, tcp_counters(list(three.net.uplinks.values())) as count_tcp:
        tcp.settimeout(5)
        tcp.sendto(b"GET /address HTTP/1.1\r\nHost: lab\r\n\r\n", socket.MSG_FASTOPEN, (new_site(4), HTTP_PORT))
        assert tcp.recv(1000).startswith(b"HTTP/1.1 200 OK")
        assert count_tcp().syns == 1
    three.expect(race_begun=0)


METERED = """
[[uplink]]
name = "dsl"
device = "dsl"
metered = true
[[uplink]]
name = "lte"
device = "lte"
[[uplink]]
name = "sat"
device = "sat"
"""


def test_metered_uplinks_are_left_out(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(*SILENT, serving=())
    daemon = start_braid(net, "--config", configured(net, RACE + METERED))
    with racing(net, daemon, 4) as made, tcp_counters([net.uplinks["dsl"]]) as count_tcp:
        assert made.via(*(new_site(4) for _ in range(5))) == {"dsl": 0, "lte": 5, "sat": 0}
        assert count_tcp().syns == 0
        made.expect(race_begun=5)


def test_no_daemon_is_needed_to_race(race: Racing) -> None:
    race.daemon.kill9()
    assert race.via(*(new_site(race.family) for _ in range(3))) == {"dsl": 0, "lte": 3}
    race.daemon.up("--config", configured(race.net, RACE))
    race.expect(race_begun=3)


def test_too_many_races_are_none(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(*LINES, serving=())
    daemon = start_braid(
        net, "--config", configured(net, RACE.replace("explore_one_in = 0", 'explore_one_in = 0\ntotal = "1/s"'))
    )
    with racing(net, daemon, 4) as made:
        assert {each.error for each in made.connect(*(new_site(4) for _ in range(8)))} == {None}
        begun, over = made.counted("race_begun", "race_over_rate")
    assert begun + over == 8
    assert over >= 5


def test_fastest_races_what_is_new_and_predicts_what_is_known(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    net = make_network(*LINES, serving=())
    daemon = start_braid(net, "--config", configured(net, RACE.replace('"race"', '"fastest"')))
    with racing(net, daemon, 4) as made:
        site = new_site(4)
        assert made.via(site) == {"dsl": 0, "lte": 1}
        made.expect(race_lost=1)
        # Their uplinks also depend on headroom: each recent connection takes some.
        assert sum(made.via(*[site] * 3).values()) == 3
        made.expect(race_begun=1, path_predicted=3)


#: Eight downloads over both lines take two seconds, over the nearer one alone four.
SHARED = (
    UplinkSpec("dsl", LinkSpec(rate="20Mbit/s", delay="10ms")),
    UplinkSpec("lte", LinkSpec(rate="30Mbit/s", delay="25ms")),
)
DOWNLOAD = Amount(1_200_000, 20.0)


@pytest.fixture(params=["ebpf-ipv4", "ebpf-ipv6", "packet-in-ipv4"])
def shared(request: pytest.FixtureRequest, make_network: MakeNetwork, start_braid: StartBraid) -> Iterator[Racing]:
    """Two lines of different rate and delay under `fastest`, over each IP version, from the host."""
    kind, version = request.param.rsplit("-", 1)
    with on_datapath(kind):
        net = make_network(*SHARED, serving=())
        daemon = start_braid(net, "--config", configured(net, RACE.replace('"race"', '"fastest"')))
    with racing(net, daemon, int(version[-1])) as made:
        yield made


def test_downloads_at_once_from_an_unknown_network_share_the_lines(shared: Racing) -> None:
    """All of their first replies come over the nearer line, before anything is known of the other one."""
    got = fetch(shared.client, [new_site(shared.family)] * 8, DOWNLOAD)
    seen = by_uplink(shared.net, [(each.via or "", 0) for each in got])
    assert min(seen.values()) >= 3, seen
    took = max(each.ended for each in got) - min(each.began for each in got)
    assert 8e-6 * 8 * DOWNLOAD.bytes / took > 1.4 * 20, seen
    shared.expect(race_begun=8)


def test_who_is_waited_for_and_silent_is_not_waited_for_again(shared: Racing) -> None:
    site = new_site(shared.family)
    near = {shared.net.uplinks["dsl"].address4, shared.net.uplinks["dsl"].address6}
    with answering(shared.net, "drop", "lte"):
        first, second = ([*shared.connect(*[site] * 8)] for _ in range(2))
    assert {each.via for each in first + second} <= near
    # A client that waits in vain repeats its SYN after a second.
    assert max(each.connect_s for each in first) < SYN_AGAIN + AT_ONCE_S
    assert max(each.connect_s for each in second) < AT_ONCE_S


def test_who_is_waited_for_and_refuses_is_not_believed(shared: Racing) -> None:
    """The other line's reply was rejected as too late, so the client has to try again."""
    with answering(shared.net, "reject with tcp reset", "lte"):
        got = shared.connect(*[new_site(shared.family)] * 8)
    assert {each.error for each in got} == {None}
