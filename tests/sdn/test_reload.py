"""A configuration that is read anew: it is followed as far as that takes no restart, without a lost packet."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from braid_lab.fabric.shapes import Shape, Station, beside, parallel, two_paths
from braid_sdn.fabric import config_changes
from braid_sdn.fabric.acl import Acl, AclEntry, Action, End, Place
from braid_sdn.fabric.api import report
from braid_sdn.fabric.api.events import Event
from braid_sdn.fabric.config import Config, read
from braid_sdn.fabric.plan.forecast import Scheduler
from braid_sdn.fabric.plan.mdi import Thresholds
from braid_sdn.fabric.service import Service
from braid_sdn.fabric.settings import EdgeSettings, FloodSettings, HostSettings, LinkSettings, Settings
from braid_sdn.openflow.messages import AddRule, DeleteRule, Hello, Port

from .test_policies import Stream, set_policy, used
from .virtual import Network, everybody_reaches_everybody, frame, mac, ready, tags

#: Nothing here is about paths that are measured.
pytestmark = pytest.mark.usefixtures("rare_probes")


def follow(net: Network, **more: Any) -> None:
    """Have the controller follow other settings."""
    net.settings = replace(net.settings, **more)
    net.controller.set_settings(net.now, net.settings)
    net._flush()


@contextmanager
def told_rules(net: Network) -> Iterator[list[tuple[int, object]]]:
    """The rules that switches are told within a block, but for leases, which are renewed whatever happens."""
    told: list[tuple[int, object]] = []
    deliver = net._deliver

    def deliver_and_note(dpid: int, message: object) -> None:
        if isinstance(message, DeleteRule) or (isinstance(message, AddRule) and not message.rule.lease):
            told.append((dpid, message))
        deliver(dpid, message)

    net._deliver = deliver_and_note  # type: ignore[method-assign]
    yield told
    net._deliver = deliver  # type: ignore[method-assign]


def links(shape: Shape, **mbit: float) -> tuple[LinkSettings, ...]:
    """Links of a shape; those to the switches that are named with another capacity."""
    return tuple(
        LinkSettings((wire.one, wire.other), 1e6 * mbit.get(wire.one, mbit.get(wire.other, wire.mbit)))
        for wire in shape.wires
    )


def shares(net: Network, source: str = "ha", target: str = "hb") -> dict[int, float]:
    """The share of each path by the switch in its middle."""
    pair = net.controller.tables.pairs[source, target]
    both = zip(pair.paths, pair.selection.paths, strict=True)
    return {chosen.switches[1]: round(pair.share(path.tag), 2) for path, chosen in both}


def table(net: Network, name: str) -> dict[str, Any]:
    """An edge's table without what is another one with each change of any table."""
    told = report.edge_table(net.controller, name)
    assert told is not None
    return {key: value for key, value in told.items() if key not in ("revision", "generation")}


# Links.


def test_another_capacity_changes_shares_alone_and_loses_nothing() -> None:
    net = ready(two_paths())
    before = tags(net, "ha", "hb")
    stream = Stream(net)
    stream.run(0.3)
    assert shares(net) == {3: 0.5, 4: 0.5}
    with told_rules(net) as told:
        follow(net, links=links(net.shape, P=30))
        stream.run(0.5)
    assert shares(net) == {3: 0.75, 4: 0.25}
    assert tags(net, "ha", "hb") == before
    assert told == []
    assert table(net, "ha")["egress"][0]["max_rate_bit_s"] == 40e6
    known = report.status(net.controller, net.now)["links"]
    by_p = [each for each in known if "P" in (each["source_switch"], each["target_switch"])]
    assert [each["capacity_bit_s"] for each in by_p] == [30e6] * 4
    stream.check()


def test_a_capacity_that_leaves_shares_as_they_are_is_told_to_edges_all_the_same() -> None:
    net = ready(two_paths(), scheduler=Scheduler.WRR)
    revision = report.edge_revision(net.controller, "ha")
    follow(net, links=links(net.shape, P=20, Q=20))
    net.run(0.5)
    assert shares(net) == {3: 0.5, 4: 0.5}
    assert table(net, "ha")["egress"][0]["max_rate_bit_s"] == 40e6
    assert report.edge_revision(net.controller, "ha") != revision


def test_a_capacity_concerns_the_pairs_whose_links_it_is_alone() -> None:
    shape = beside(parallel([(10, 5), (10, 5)]), parallel([(10, 5), (10, 5)], prefix="X"))
    net = ready(shape)
    assert shares(net, "hxa", "hxb") != {}
    others = {name: table(net, name) for name in ("hxa", "hxb")}
    trees = dict(net.controller.plan.trees)
    with told_rules(net) as told:
        follow(net, links=links(shape, P1=40))
        net.run(1)
    assert told == []
    assert sorted(shares(net).values()) == [0.2, 0.8]
    assert {name: table(net, name) for name in others} == others
    assert net.controller.plan.trees == trees


def test_a_capacity_that_is_taken_out_is_not_believed_any_more() -> None:
    net = ready(two_paths())
    port = net.port_of("A", "P")
    follow(net, links=tuple(each for each in net.settings.links if "P" not in each.between))
    net.run(0.5)
    assert port not in net.controller.traffic.configured
    assert net.controller.traffic.capacity_of(
        net.controller.topology.heard[port, net.port_of("P", "A")], net.controller.topology
    ) == pytest.approx(10e9)


def test_what_was_learned_of_a_path_is_forgotten_with_its_capacity() -> None:
    net = ready(two_paths(), links=())
    ways = {each.switches[1]: each.hops for each in net.controller.tables.pairs["ha", "hb"].selection.paths}
    for hops in ways.values():
        net.controller.path_capacity.limits.pop(hops, None)
        assert net.controller.path_capacity.handle_measured(net.now, hops, 7e6)
    follow(net, links=links(net.shape, P=50)[:2])
    net.run(0.5)
    assert {tuple(each.between) for each in net.settings.links} == {("A", "P"), ("P", "B")}
    assert ways[3] not in net.controller.path_capacity.limits
    assert net.controller.path_capacity.limits[ways[4]] == 7e6


# Paths.


def test_thresholds_leave_a_path_out_and_take_it_back_without_loss() -> None:
    net = ready(parallel([(10, 5), (10, 9)]))
    stream = Stream(net)
    stream.run(0.2)
    assert len(used(net)) == 2
    follow(net, limits=Thresholds(resequence_mdi=0.01, leave_out_mdi=0.02, tolerable_skew=0.0))
    stream.run(1)
    assert len(used(net)) == 1
    follow(net, limits=Thresholds())
    stream.run(1)
    assert len(used(net)) == 2
    stream.check()


def test_edges_walk_their_slots_and_forecast_again_as_the_scheduler_says() -> None:
    net = ready(two_paths())
    assert len(table(net, "ha")["egress"][0]["paths"]) == 2
    follow(net, scheduler=Scheduler.WRR)
    assert table(net, "ha")["egress"][0]["paths"] == []
    net.run(3)
    assert table(net, "ha")["egress"][0]["paths"] == []
    follow(net, scheduler=Scheduler.EARLIEST_ARRIVAL)
    net.run(0.5)
    assert len(table(net, "ha")["egress"][0]["paths"]) == 2


def test_another_frame_size_is_needed_of_links_that_were_measured_before() -> None:
    net = ready(two_paths())
    hop = net.port_of("A", "P"), net.port_of("P", "A")
    net.controller.frame_sizes.known[hop] = 1500
    assert not net.controller.frame_sizes.small
    follow(net, frame_bytes=9000)
    assert net.controller.frame_sizes.small == {hop}
    assert "small-frames" in net.codes()
    follow(net, frame_bytes=None)
    assert "small-frames" not in net.codes()


# Names.


def test_switches_get_other_names_and_nothing_else_happens() -> None:
    net = ready(two_paths())
    set_policy(net, "switches", "P", "drain")
    net.run(4)
    stream = Stream(net)
    stream.run(0.2)
    with told_rules(net) as told:
        names = {1: "A", 2: "B", 3: "Q", 4: "P"}
        follow(net, names=names, links=links(net.shape), edges=net.settings.edges)
        stream.run(0.5)
    assert told == []
    # The policy is the switch's, whatever it is called.
    shown = report.status(net.controller, net.now)["switches"]
    assert {each["name"]: each["drained"] for each in shown} == {"A": False, "B": False, "Q": True, "P": False}
    assert used(net) == [(1, 4, 2)]
    stream.check()
    assert set_policy(net, "switches", "Q", "undrain")["changed"]


def test_a_list_that_names_a_switch_anew_means_it_at_once() -> None:
    net = ready(two_paths())
    acl = Acl((AclEntry(Action.DENY, End(place=Place(switch="West")), End(mac=mac(2))),))
    follow(net, names={**net.settings.names, 1: "West"}, acl=acl, edges=(), links=())
    net.run(1)
    assert "acl-place-unknown" not in net.codes()
    net.received["hb"].clear()
    net.send("ha", frame(mac(1), mac(2)))
    net.run(0.5)
    assert net.received["hb"] == []


# Edges.


def test_an_edge_comes_and_goes_without_loss() -> None:
    shape = two_paths()
    net = ready(shape, edges=())
    stream = Stream(net)
    stream.run(0.2)
    edges = tuple(EdgeSettings(each.name, each.switch, each.name, probe=False) for each in shape.stations)
    follow(net, edges=edges)
    while ("ha", "hb") not in net.controller.tables.pairs:
        stream.run(0.001)
    # An edge gets its table later than its switch the rule that is sent in the same moment.
    net.run(0.005)
    stream.run(1)
    assert len(used(net)) == 2
    before = len(stream.sent)
    stream.run(0.2)
    assert len(stream.sent) - before == 400
    # It is told of no paths before its tags end.
    follow(net, edges=edges[1:])
    told = table(net, "ha")
    stream.run(0.01)
    while ("ha", "hb") in net.controller.tables.pairs:
        told = table(net, "ha")
        assert told["egress"], "it was told to use no path before there was a reason"
        stream.run(0.005)
    assert table(net, "ha")["egress"] == []
    stream.run(1)
    assert not {"edge-unknown", "pair-unserved"} & net.codes()
    net.run(10)
    stream.check()
    assert [edge.name for edge in net.controller.edges] == ["hb"]
    everybody_reaches_everybody(net)
    follow(net, edges=edges)
    net.run(1)
    assert net.controller.former_edges == set()
    assert table(net, "ha")["egress"] != []


# Hosts.


def test_a_static_host_comes_is_corrected_and_ages_again_once_it_is_taken_out() -> None:
    net = ready(two_paths(), host_lifetime=20.0)
    wanted = HostSettings(mac(9), "A", "ha", frozenset({"10.0.0.9"}))
    follow(net, hosts=(wanted,))
    net.run(0.2)
    host = net.controller.find_host("10.0.0.9")
    assert host is not None
    assert (host.mac, host.port) == (mac(9), net.stations["ha"])
    assert net.controller.hosts.silence(net.now, mac(9))[1] is None
    follow(net, hosts=(replace(wanted, switch="B", port="hb"),))
    net.run(0.2)
    assert net.controller.hosts.known[mac(9)].port == net.stations["hb"]
    follow(net, hosts=(replace(wanted, switch="B", port="nowhere"),))
    net.run(0.2)
    assert "host-unknown" in net.codes()
    follow(net, hosts=())
    net.run(0.2)
    assert "host-unknown" not in net.codes()
    assert net.controller.hosts.silence(net.now, mac(9))[1] is not None
    net.run(25)
    assert mac(9) not in net.controller.hosts.known


def test_another_lifetime_counts_for_hosts_that_are_known() -> None:
    net = ready(two_paths())
    for _ in range(2):
        net.send("ha", frame(mac(1), mac(2)))
        net.controller.hosts.hear(net.now, mac(1))
        net.run(0.1)
    follow(net, host_lifetime=10.0)
    assert net.controller.hosts.silence(net.now, mac(1))[1] == pytest.approx(10, abs=1)
    net.run(25)
    assert mac(1) not in net.controller.hosts.known


# Failover and floods.


def detours(net: Network) -> list[object]:
    return [each.detour for each in net.controller.plan.trees.values() if each.detour is not None]


def test_failover_ends_and_begins_without_loss() -> None:
    shape = replace(two_paths(), stations=(Station("ha", "A"), Station("hb", "B")))
    net = ready(shape)
    assert detours(net)
    stream = Stream(net)
    stream.run(0.2)
    follow(net, failover=False)
    stream.run(2)
    assert not detours(net)
    assert not net.controller.failover
    follow(net, failover=True)
    stream.run(0.5)
    net.run(15)
    assert detours(net)
    stream.check()


# The service.


def test_each_key_is_followed_or_named_as_one_that_takes_a_restart(tmp_path: Path) -> None:
    """All keys of the file that packaging/fabric.toml and docs/fabric.md have, each changed alone."""
    (tmp_path / "a.key").write_bytes(b"a" * 16)
    (tmp_path / "b.key").write_bytes(b"b" * 16)
    basis = {
        "": 'key_file = "a.key"\nlisten = "127.0.0.1:6653"\nhost_lifetime = "300 s"\nfailover = true\n'
        'acl_default = "permit"\n',
        "metrics": 'listen = "127.0.0.1:9653"\n',
        "web": 'listen = "127.0.0.1:8444"\nnames = ["a.example"]\n',
        "tls": 'certificate = "c"\nkey = "k"\nauthority = "a"\n',
        "cluster": 'name = "alpha"\nlease = "3 s"\netcd = ["http://192.0.2.1:2379"]\n',
        "paths": 'leave_out_mdi = 0.4\nscheduler = "wrr"\nframe_bytes = 1500\n',
        "flood": 'limit = "auto"\n',
        "[switch]": 'id = "1"\nname = "A"\n',
        "[switch] ": 'id = "2"\nname = "B"\n',
        "[link]": 'between = ["1", "2"]\ncapacity = "10 Mbit/s"\n',
        "[edge]": 'name = "west"\nswitch = "1"\nport = "e"\n',
        "[host]": 'mac = "02:00:00:00:00:07"\nswitch = "1"\nport = "h"\n',
        "[acl]": 'action = "deny"\nfrom = "10.0.0.1"\n',
    }

    def text(tables: dict[str, str]) -> str:
        return "".join((f"[{name.strip()}]\n" if name else "") + body for name, body in tables.items())

    def changed(table: str, old: str, new: str) -> tuple[list[str], list[str]]:
        file = tmp_path / "fabric.toml"
        file.write_text(text(basis))
        before = read(file)
        assert old in basis[table]
        file.write_text(text({**basis, table: basis[table].replace(old, new)}))
        after = read(file)
        return config_changes.followed(before.settings, after.settings), config_changes.restarting(before, after)

    assert changed("", "true", "true") == ([], [])
    for table, old, new, key in (
        ("", "300 s", "200 s", "host_lifetime"),
        ("", "true", "false", "failover"),
        ("", '"permit"', '"deny"', "acl"),
        ("paths", "0.4", "0.3", "paths.leave_out_mdi"),
        ("paths", "wrr", "earliest-arrival", "paths.scheduler"),
        ("paths", "1500", "9000", "paths.frame_bytes"),
        ("flood", "auto", "20 Mbit/s", "flood"),
        ("[link]", "10 Mbit/s", "20 Mbit/s", "link"),
        ("[edge]", '"e"', '"f"', "edge"),
        ("[host]", '"h"', '"i"', "host"),
        ("[acl]", "deny", "permit", "acl"),
    ):
        assert changed(table, old, new) == ([key], []), (table, old)
    for table, old, new, key in (
        ("", "6653", "6633", "listen"),
        ("metrics", "9653", "9654", "metrics.listen"),
        ("web", "8444", "8445", "web.listen"),
        ("web", "a.example", "b.example", "web.names"),
        ("tls", '"c"', '"d"', "tls.certificate"),
        ("tls", '"a"', '"b"', "tls.authority"),
        ("cluster", "alpha", "beta", "cluster.name"),
        ("cluster", "3 s", "4 s", "cluster.lease"),
        ("cluster", "192.0.2.1", "192.0.2.2", "cluster.etcd"),
    ):
        assert changed(table, old, new) == ([], [key]), (table, old)
    assert changed("", "a.key", "b.key")[1] == ["key_file"]
    # A name is in all that names the switch.
    assert changed("[switch]", '"A"', '"Z"')[0] == ["edge", "host", "link", "switch"]


def test_tables_that_come_or_go_as_a_whole_are_named_by_their_keys() -> None:
    plain = Config(Settings(b"k" * 16))
    assert config_changes.restarting(plain, replace(plain, has_key_file=True)) == []
    other = replace(plain, settings=Settings(b"o" * 16))
    # Each reading makes a key of its own.
    assert config_changes.restarting(plain, other) == []
    assert config_changes.restarting(plain, replace(other, has_key_file=True)) == ["key_file"]


def a_service(tmp_path: Path, config: Config, told: list[Event]) -> Service:
    service = Service(config, tmp_path, told.append)
    ports = (Port(1, "a", "06:00:00:00:00:01", True, 1e9),)
    service.connected(1.0, Hello(1, ports, "test"))
    return service


def test_a_reload_takes_what_it_can_and_names_the_rest_until_the_file_is_as_before(tmp_path: Path) -> None:
    told: list[Event] = []

    def config(port: int = 6653, **more: Any) -> Config:
        return replace(Config(Settings(secrets.token_bytes(16), **more)), port=port)

    def codes(service: Service) -> dict[str, str]:
        return {each.code: each.text for each in report.problems(service.controller, 1.0)}

    async def story() -> None:
        service = a_service(tmp_path, config(), told)
        key = service.controller.settings.key
        edge = EdgeSettings("west", "A", "a", key=b"e" * 16)
        wanted: dict[str, Any] = {"names": {1: "A"}, "edges": (edge,), "host_lifetime": 20.0}
        service.reload(lambda: config(6633, **wanted))
        assert service.controller.settings.names == {1: "A"}
        assert service.controller.settings.key == key
        assert service._api._auth.keys == {"west": edge.key}
        assert "listen: the file says something else" in codes(service)["restart-needed"]
        # A key that takes a restart is named as long as it differs.
        service.reload(lambda: config(6633, **wanted))
        assert "restart-needed" in codes(service)
        # A leader that begins anew has what was read last, and says so too.
        anew = service._new_controller()
        assert (anew.settings.host_lifetime, anew.restart_needed) == (20.0, "listen")
        service.reload(lambda: config(**wanted))
        assert "restart-needed" not in codes(service)
        service.stop()

    asyncio.run(story())
    assert [(each.name, dict(each.fields), each.warning) for each in told if each.name == "reloaded"] == [
        ("reloaded", {"taken": "edge, host_lifetime, switch", "restart": "listen"}, True),
        ("reloaded", {"taken": "nothing differs", "restart": "listen"}, True),
        ("reloaded", {"taken": "nothing differs"}, False),
    ]


def test_another_name_is_no_switch_that_came_and_what_came_before_it_is_told(tmp_path: Path) -> None:
    told: list[Event] = []

    async def story() -> None:
        service = a_service(tmp_path, Config(Settings(b"k" * 16, names={1: "A"})), told)
        service.reload(lambda: Config(Settings(b"k" * 16, names={1: "Z"})))
        await service.log_changes()
        service.stop()

    asyncio.run(story())
    assert [each.name for each in told] == ["switch-connected", "reloaded"]
    assert told[0].fields["switch"] == "A"


def test_lists_and_floods_are_told_with_what_they_are(tmp_path: Path) -> None:
    told: list[Event] = []

    async def story() -> None:
        service = a_service(tmp_path, Config(Settings(b"k" * 16)), told)
        acl = Acl((AclEntry(Action.DENY, End(mac=mac(1))),))
        service.reload(lambda: Config(Settings(b"k" * 16, acl=acl, flood=FloodSettings(2e6))))
        assert service.controller.acl.acl == acl
        assert service.controller.settings.flood == FloodSettings(2e6)
        service.stop()

    asyncio.run(story())
    (event,) = (each for each in told if each.name == "reloaded")
    assert event.fields == {"taken": "acl, flood", "acl": "entries 1, default permit", "flood": "2 Mbit/s"}
