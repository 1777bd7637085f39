"""Rules, as seen by the servers that flows reach."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from braid_lab.fixtures import run_client, serve
from braid_lab.net.namespace import Namespace
from braid_lab.net.open_vswitch import on_datapath
from braid_lab.net.topology import Topology, network
from braid_lab.observe import ask_tcp, ask_udp, by_uplink
from braid_lab.process import Output, run, wait_until
from braid_lab.product import Braid, binary
from conftest import PLAIN, MakeNetwork, StartBraid

FAILED = 1
USAGE = 2
NOBODY, SOMEBODY = 65534, 4711
EXPEDITED = 46

#: One rule of each kind. Every one selects lte, which round robin would give every second flow.
RULES = """
policy = "rr"

[[rule]]
name = "first-wins"
destination = "198.51.100.7/32"
port = 80
use = "dsl"

[[rule]]
name = "server"
destination = ["198.51.100.6/31", "2001:db8:ffff::6/127"]
use = "lte"

[[rule]]
name = "questions"
protocol = "udp"
port = "50-60"
use = "lte"

[[rule]]
name = "pings"
protocol = "icmp"
use = "lte"

[[rule]]
name = "urgent"
dscp = 46
use = "lte"

[[rule]]
name = "second-client"
mac = "02:00:00:00:08:02"
use = "lte"

[[rule]]
name = "third-client"
source = ["192.168.8.103", "fd00:8::103"]
use = "lte"

[[rule]]
name = "bank"
domain = "*.bank.example"
use = "lte"

[[rule]]
name = "user"
uid = 4711
use = "lte"

[[rule]]
name = "not-ours"
destination = "198.51.100.5"
use = "none"

[[rule]]
name = "nowhere"
destination = "198.51.100.4"
use = "block"
"""

#: Connects with a code point, and prints the address that the server sees.
WITH_DSCP = """
import socket, sys
address, dscp = sys.argv[1], int(sys.argv[2])
with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as asker:
    asker.settimeout(5)
    if ":" in address:
        asker.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2)
    else:
        asker.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
    asker.connect((address, 80))
    asker.sendall(b"GET /address HTTP/1.1\\r\\nHost: lab\\r\\n\\r\\n")
    print(asker.recv(1000).decode().split("\\r\\n\\r\\n")[1].split()[0])
"""


@pytest.fixture(scope="module")
def ruled(request: pytest.FixtureRequest) -> Iterator[tuple[Topology, Braid]]:
    """A gateway with three clients and all rules."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(on_datapath(getattr(request, "param", "ebpf")))
        net = stack.enter_context(network(PLAIN, lan_clients=3))
        serve(net, "http1", "dns")
        net.clients[1].ip("link set eth0 address 02:00:00:00:08:02")
        file = net.scratch / "rules.toml"
        file.write_text(RULES)
        daemon = Braid(net.host, net.scratch / "braid-rules")
        stack.callback(daemon.end)
        daemon.up("--config", file)
        yield net, daemon


#: For rules that each datapath obeys in a way of its own.
on_each = pytest.mark.parametrize("ruled", ["ebpf", "packet-in", "group"], indirect=True)
both_families = pytest.mark.parametrize("family", [4, 6])
ALL_LTE, SHARED = {"dsl": 0, "lte": 4}, {"dsl": 2, "lte": 2}
#: Enough flows for a hash not to give all of them one uplink.
MANY = 16


def asked(net: Topology, location: Namespace, server: str) -> dict[str, int]:
    return by_uplink(net, ask_tcp(location, 4, server))


def takes_lte(net: Topology, location: Namespace, server: str) -> bool:
    return asked(net, location, server) == ALL_LTE


def check_shared(net: Topology, seen: Iterable[tuple[str, int]]) -> None:
    """Check that flows took both uplinks, in turn or by a hash."""
    assert min(by_uplink(net, list(seen)).values()) > 0


@both_families
def test_without_a_rule_flows_are_shared(ruled: tuple[Topology, Braid], family: int) -> None:
    net, _ = ruled
    for location in (net.host, net.clients[0]):
        assert asked(net, location, net.server(1, family)) == SHARED


@both_families
def test_a_destination_takes_its_uplink(ruled: tuple[Topology, Braid], family: int) -> None:
    net, _ = ruled
    for location in (net.host, net.clients[0]):
        assert asked(net, location, net.server(6, family)) == ALL_LTE


def test_the_first_of_overlapping_rules_wins(ruled: tuple[Topology, Braid]) -> None:
    net, _ = ruled
    assert asked(net, net.host, net.server(7)) == {"dsl": 4, "lte": 0}
    assert asked(net, net.host, net.server(7, 6)) == ALL_LTE


@both_families
def test_a_protocol_and_a_port_take_their_uplink(ruled: tuple[Topology, Braid], family: int) -> None:
    net, daemon = ruled
    for location in (net.host, net.clients[0]):
        ask_udp(location, 3, net.server(1, family))
    flows = [each for each in daemon.json("flows")["flows"] if each["protocol"] == "udp"]
    asked = [each for each in flows if each["remote"] is None or each["remote"].endswith(":53")]
    assert asked
    assert {each["uplink"] for each in asked} == {"lte"}


def test_pings_take_their_uplink(ruled: tuple[Topology, Braid]) -> None:
    net, daemon = ruled
    for location in (net.host, net.clients[0]):
        for _ in range(2):
            location.run(["ping", "-c", "1", "-W", "2", net.server(2)])
    flows = [each for each in daemon.json("flows")["flows"] if each["protocol"] == "icmp"]
    assert flows
    # Probes of the health checks are not flows.
    assert {each["uplink"] for each in flows} == {"lte"}


@both_families
def test_a_code_point_takes_its_uplink(ruled: tuple[Topology, Braid], family: int) -> None:
    net, _ = ruled
    for location in (net.host, net.clients[0]):
        for _ in range(2):
            words = [sys.executable, "-c", WITH_DSCP, net.server(1, family), str(EXPEDITED)]
            seen = location.run(words).stdout.strip()
            assert by_uplink(net, [(seen, 0)]) == {"dsl": 0, "lte": 1}


@on_each
@both_families
def test_a_device_and_an_address_of_the_lan_take_their_uplink(ruled: tuple[Topology, Braid], family: int) -> None:
    net, _ = ruled
    for client in net.clients[1:]:
        assert asked(net, client, net.server(1, family)) == ALL_LTE
    check_shared(net, ask_tcp(net.clients[0], MANY, net.server(1, family)))


@on_each
@both_families
def test_a_name_takes_its_uplink_once_it_was_looked_up(
    ruled: tuple[Topology, Braid], family: int, request: pytest.FixtureRequest
) -> None:
    """The name server's answer passes through Braid; a connection to that address then counts as one to the name."""
    net, _ = ruled
    # The eBPF programs send the client its answer at once and the daemon a copy, so the name is known a moment later.
    held = request.node.callspec.params["ruled"] != "ebpf"
    for location in (net.host, net.clients[0]):
        # The third server and the eighth, which no other rule and no other test uses.
        for name in ("pay.bank.example", "home.bank.example"):
            [found] = run_client(location, "look_up", net.server(1, family), family, name)
            if held:
                assert by_uplink(net, [tuple(found["seen"])]) == {"dsl": 0, "lte": 1}, name
            else:
                wait_until(partial(takes_lte, net, location, found["address"]), what=f"{name} to be known")
            assert asked(net, location, found["address"]) == ALL_LTE, name


@on_each
def test_a_users_programs_take_their_uplink(ruled: tuple[Topology, Braid]) -> None:
    net, _ = ruled

    def asked_by(user: int, times: int) -> list[tuple[str, int]]:
        # Each program has a connection of its own.
        loop = f"for each in $(seq {times}); do curl -sSf --max-time 5 http://{net.server(1)}/address; done"
        words = ["setpriv", "--reuid", str(user), "--clear-groups", "--", "sh", "-c", loop]
        return [(line.split()[0], 0) for line in net.host.run(words).stdout.splitlines()]

    assert by_uplink(net, asked_by(SOMEBODY, 4)) == ALL_LTE
    check_shared(net, asked_by(NOBODY, MANY))


def test_what_is_not_ours_leaves_by_the_machines_own_route(ruled: tuple[Topology, Braid]) -> None:
    net, daemon = ruled
    before = {each["inner"] for each in daemon.json("flows")["flows"]}
    # The default route with the smallest metric is that of dsl.
    assert asked(net, net.host, net.server(5)) == {"dsl": 4, "lte": 0}
    after = [each for each in daemon.json("flows")["flows"] if each["inner"] not in before]
    assert not [each for each in after if (each["remote"] or "").startswith(net.server(5))]


def test_what_is_blocked_goes_nowhere(ruled: tuple[Topology, Braid]) -> None:
    net, daemon = ruled
    before = daemon.json("status")["reasons"].get("class_blocked", 0)
    for location in (net.host, net.clients[0]):
        words = ["curl", "-sS", "--connect-timeout", "1", f"http://{net.server(4)}/address"]
        assert location.run(words, check=False).status != 0
    assert daemon.json("status")["reasons"]["class_blocked"] > before


@on_each
def test_braid_run_keeps_a_program_on_its_uplink(ruled: tuple[Topology, Braid]) -> None:
    net, daemon = ruled
    words = [sys.executable, "-m", "braid_lab.clients.whoami", "tcp", str(MANY), net.server(1)]
    seen = json.loads(daemon.call("run", "--uplink", "lte", "--", *words).stdout)
    assert by_uplink(net, [tuple(each) for each in seen]) == {"dsl": 0, "lte": MANY}
    check_shared(net, ask_tcp(net.host, MANY, net.server(1)))
    assert daemon.call("run", "--uplink", "lte", "--", "sh", "-c", "exit 7", check=False).status == 7
    unknown = daemon.call("run", "--uplink", "fibre", "--", "true", check=False)
    assert unknown.status == USAGE
    assert "dsl" in unknown.stderr, unknown.text
    assert "lte" in unknown.stderr, unknown.text


def test_explain_names_the_rule(ruled: tuple[Topology, Braid]) -> None:
    net, daemon = ruled
    cases = {
        (net.server(6),): ("server", "lte"),
        (f"{net.server(7)}:80",): ("first-wins", "dsl"),
        (f"{net.server(1)}:53", "--protocol", "udp"): ("questions", "lte"),
        (net.server(1), "--domain", "www.bank.example"): ("bank", "lte"),
        (net.server(1), "--source", "192.168.8.103"): ("third-client", "lte"),
        (net.server(1), "--uid", str(SOMEBODY)): ("user", "lte"),
        (net.server(1), "--dscp", str(EXPEDITED)): ("urgent", "lte"),
        (net.server(4),): ("nowhere", None),
    }
    for words, (rule, uplink) in cases.items():
        answer = daemon.json("explain", *words)["answers"][0]
        assert answer["uplink"] == uplink, (words, answer)
        assert any(rule in step["text"] for step in answer["steps"] if step["stage"] == "rule"), (words, answer)
    nobody = daemon.json("explain", net.server(1), "--source", "10.99.0.1")["answers"][0]
    assert nobody["outcome"] == "refused", nobody
    assert any("lan_spoofed" in step["text"] for step in nobody["steps"]), nobody
    answer = daemon.json("explain", net.server(1))["answers"][0]
    assert answer["outcome"] == "shared", answer
    assert {each["uplink"] for each in answer["candidates"]} == {"dsl", "lte"}, answer


WHEN_DOWN = """
[[rule]]
name = "blocked"
destination = "198.51.100.6"
use = "lte"
on_down = "block"
[[rule]]
name = "others"
destination = "198.51.100.7"
use = "lte"
"""


def test_a_rule_whose_uplink_is_down_blocks_or_gives_way(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network()
    file = net.scratch / "when-down.toml"
    file.write_text(WHEN_DOWN)
    daemon = start_braid(net, "--config", file)
    assert asked(net, net.host, net.server(6)) == ALL_LTE
    net.host.ip("link set lte down")
    wait_until(
        lambda: all(each["name"] != "lte" or each["state"] != "up" for each in daemon.json("uplinks")["uplinks"]),
        what="lte to be seen down",
    )
    words = ["curl", "-sS", "--connect-timeout", "1", f"http://{net.server(6)}/address"]
    assert net.host.run(words, check=False).status != 0
    assert asked(net, net.host, net.server(7)) == {"dsl": 4, "lte": 0}


NAMED = '[[uplink]]\nname = "home"\ndevice = "dsl"\n[[uplink]]\nname = "mobile"\ndevice = "lte"\n'
MISTAKEN = {
    "unknown uplink": (
        NAMED + '[[rule]]\nname = "tv"\nport = 443\nuse = "fibre"\n',
        ["fibre", "home", "mobile", "bad.toml"],
    ),
    "not a prefix": ('[[rule]]\ndestination = "198.51.100.0/33"\nuse = "rr"\n', ["33", "bad.toml"]),
    "not a port": ('[[rule]]\nport = "80-70"\nuse = "rr"\n', ["80", "bad.toml"]),
    "unknown key": ('[[rule]]\nprot = 80\nuse = "rr"\n', ["prot", "bad.toml"]),
    "no use": ("[[rule]]\nport = 80\n", ["use", "bad.toml"]),
    "none by domain": ('[[rule]]\ndomain = "*.example"\nuse = "none"\n', ["domain", "none", "bad.toml"]),
}


@pytest.mark.parametrize("case", MISTAKEN)
def test_mistaken_rules_are_refused_with_their_place(tmp_path: Path, case: str) -> None:
    text, expected = MISTAKEN[case]
    file = tmp_path / "bad.toml"
    file.write_text(text)
    said = checked(file)
    assert said.status == FAILED, said.text
    assert all(word in said.text for word in expected), said.text


def test_a_rule_that_never_matches_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "shadowed.toml"
    file.write_text(
        NAMED
        + '[[rule]]\nname = "all-web"\nport = "80-443"\nuse = "home"\n'
        + '[[rule]]\nname = "tls"\nport = 443\nuse = "mobile"\n'
    )
    said = checked(file)
    assert "tls" in said.text, said.text
    assert "all-web" in said.text, said.text


def checked(file: Path) -> Output:
    return run([binary(), "config", "check", file], check=False)


def test_a_rule_for_an_uplink_that_is_not_there_is_said(net: Topology, start_braid: StartBraid) -> None:
    """Without `[[uplink]]` any device may become one, so the rule waits for its own."""
    file = net.scratch / "absent.toml"
    file.write_text('[[rule]]\nname = "tv"\ndestination = "198.51.100.6"\nuse = "wwan7"\n')
    daemon = start_braid(net, "--config", file)
    status = daemon.json("status")
    assert [each for each in status["health"] if "wwan7" in each["text"]], status["health"]
    assert sum(asked(net, net.host, net.server(6)).values()) == 4
