"""Uplinks that come, go and change while the daemon runs."""

from __future__ import annotations

from braid_lab.net.topology import Topology
from braid_lab.observe import ask_tcp, by_uplink, differences, kernel_state
from braid_lab.process import wait_until
from braid_lab.product import Braid
from conftest import ROUND_ROBIN, StartBraid


def states(daemon: Braid) -> dict[str, str]:
    return {each["name"]: each["state"] for each in daemon.json("uplinks")["uplinks"]}


def test_a_dead_link_gets_no_new_flows_and_comes_back(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net, *ROUND_ROBIN)
    isp = net.uplinks["lte"].far
    isp.namespace.ip(f"link set {isp.device} down")
    wait_until(lambda: states(daemon).get("lte") != "up", what="lte to be seen down")
    assert by_uplink(net, ask_tcp(net.host, 10, net.server())) == {"dsl": 10, "lte": 0}
    isp.namespace.ip(f"link set {isp.device} up")
    wait_until(lambda: states(daemon).get("lte") == "up", what="lte to be seen up again")
    counts = by_uplink(net, ask_tcp(net.host, 10, net.server()))
    assert counts == {"dsl": 5, "lte": 5}


def test_an_uplink_that_appears_is_taken(net: Topology, start_braid: StartBraid) -> None:
    with net.only("dsl"):
        daemon = start_braid(net, *ROUND_ROBIN)
        assert [name for name, state in states(daemon).items() if state == "up"] == ["dsl"]
    wait_until(lambda: states(daemon).get("lte") == "up", what="lte to be taken")
    assert by_uplink(net, ask_tcp(net.host, 10, net.server())) == {"dsl": 5, "lte": 5}


def test_a_renamed_device_is_the_same_uplink(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net, *ROUND_ROBIN)
    lte, isp = net.uplinks["lte"], net.uplinks["lte"].far
    net.host.ip("link set lte down", "link set lte name mobile", "link set mobile up")
    net.host.ip(
        f"address add {lte.address6}/64 dev mobile nodad",
        *(f"route add {route.replace('dev lte', 'dev mobile')}" for route in lte.defaults()),
    )
    wait_until(
        lambda: states(daemon).get("mobile") == "up",
        what="the device to be taken under its new name",
    )
    indices = {each["name"]: each["id"] for each in daemon.json("uplinks")["uplinks"]}
    assert indices == {"dsl": 0, "mobile": 1}
    # It is up with the first restored address, and carries flows of both IP versions a moment later.
    wait_until(
        lambda: by_uplink(net, ask_tcp(net.host, 10, net.server())) == {"dsl": 5, "lte": 5},
        what="new flows to take both lines",
    )
    isp.namespace.ip(f"link set {isp.device} down")
    wait_until(lambda: states(daemon).get("mobile") != "up", what="changes to be followed as before")


def test_a_device_renamed_without_a_daemon_is_known_again_and_left_as_found(
    net: Topology, start_braid: StartBraid
) -> None:
    def rename(old: str, new: str) -> None:
        lte = net.uplinks["lte"]
        net.host.ip(
            f"link set {old} down",
            f"link set {old} name {new}",
            f"link set {new} up",
            f"address add {lte.address6}/64 dev {new} nodad",
            *(f"route add {route.replace('dev lte', f'dev {new}')}" for route in lte.defaults()),
        )

    rename("lte", "mobile")
    net.host.sysctl(ipv4__conf__mobile__rp_filter=1)
    before = kernel_state(net.host)
    rename("mobile", "lte")
    daemon = start_braid(net)
    daemon.kill9()
    rename("lte", "mobile")
    daemon.up()
    indices = {each["name"]: each["id"] for each in daemon.json("uplinks")["uplinks"]}
    assert indices == {"dsl": 0, "mobile": 1}
    net.host.run(["ping", "-c", "2", "-i", "0.01", "-W", "2", net.server()])
    remotes = {flow["remote"] for flow in daemon.json("flows")["flows"] if flow["protocol"] == "icmp"}
    assert remotes == {net.server()}
    daemon.down()
    assert differences(before, kernel_state(net.host)) == []
