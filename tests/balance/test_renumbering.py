"""Addresses and gateways that change under running flows, as with leases."""

from __future__ import annotations

import json

import pytest

from braid_lab.experiments.balance.uplink_failure import Location, ended, held_by
from braid_lab.net.links import End
from braid_lab.net.topology import Uplink
from braid_lab.observe import ask_tcp
from braid_lab.process import CommandError, Process, wait_until
from braid_lab.product import Braid
from conftest import PLAIN, MakeNetwork, StartBraid

#: Time limit: changes are noticed at once; the rest is for a slow machine.
SOON_S = 5.0


@pytest.fixture(params=["host", "gateway"])
def plain(request: pytest.FixtureRequest, make_network: MakeNetwork) -> Location:
    clients = 1 if request.param == "gateway" else 0
    return Location(request.param, make_network(*PLAIN, lan_clients=clients, serving=("http1", "http3")))


def other_address(uplink: Uplink, family: int) -> str:
    return f"100.64.{uplink.index}.77" if family == 4 else f"2001:db8:{uplink.index}::77"


def renumber(uplink: Uplink, family: int) -> None:
    """Give an uplink another address, as a new lease does."""
    device = uplink.near.device
    old = uplink.address4 if family == 4 else uplink.address6
    length = 24 if family == 4 else 64
    words = [
        f"address add {other_address(uplink, family)}/{length} dev {device} {'nodad' if family == 6 else ''}",
        f"address delete {old}/{length} dev {device}",
    ]
    if family == 4:
        # The old route went with the address that it named.
        words.append(f"route add default via {uplink.gateway4} dev {device} metric {uplink.metric} proto dhcp")
    keep_other_addresses(uplink.near)
    uplink.near.namespace.ip(*words)


def keep_other_addresses(end: End) -> None:
    """Keep the other addresses of a subnet when its first one goes, as DHCP clients do."""
    end.namespace.sysctl(ipv4__conf__all__promote_secondaries=1)


def seen_addresses(location: Location, family: int) -> set[str]:
    return {address for address, _ in ask_tcp(location.application, 4, location.net.server(1, family))}


def seen_by_now(location: Location, family: int) -> set[str]:
    """Return the addresses seen; none if a connection was opened from the old address just before it was told."""
    try:
        return seen_addresses(location, family)
    except CommandError as error:
        assert "ConnectionResetError" in str(error), error
        return set()


def exchanging(daemon: Braid, uplink: str) -> bool:
    """Return whether each TCP flow on an uplink has just received data."""
    flows = [each for each in daemon.json("flows")["flows"] if each["protocol"] == "tcp" and each["uplink"] == uplink]
    return bool(flows) and all(each["idle_ms"] < 1000 for each in flows)


def assert_all_go_on(daemon: Braid, held: Process) -> None:
    """Check that every connection still exchanges data, and none has ended."""
    wait_until(lambda: all(exchanging(daemon, name) for name in ("dsl", "lte")), what="the flows to go on")
    assert ended(held) == []


def test_a_new_address_is_used_and_flows_of_the_old_one_are_told(
    plain: Location, family: int, start_braid: StartBraid
) -> None:
    start_braid(plain.net)
    dsl, lte = plain.net.uplinks.values()
    with plain.start("open_connections", 4, 4, plain.net.server(1, family)) as held:
        doomed = held_by(held).count(plain.address(lte, family))
        renumber(lte, family)
        both = {plain.address(dsl, family), other_address(lte, family)}
        wait_until(lambda: seen_by_now(plain, family) == both, what="the new address", timeout=SOON_S)
        wait_until(lambda: len(ended(held)) >= doomed, what="the flows to be told", timeout=SOON_S)
        assert {(each.via, each.error) for each in ended(held)} == {(plain.address(lte, family), "ECONNRESET")}
        assert len(ended(held)) == doomed


def test_a_quic_download_survives_a_new_address(plain: Location, family: int, start_braid: StartBraid) -> None:
    start_braid(plain.net)
    dsl = plain.net.uplinks["dsl"]
    with plain.start("http3_download", plain.net.server(1, family), 8_000_000) as download:
        assert download.wait_output(r"^from (\S+)\n").group(1) == plain.address(dsl, family)
        download.wait_output("^flowing")
        renumber(dsl, family)
        output = download.wait(timeout=30)
    end = json.loads(output.stdout.splitlines()[-1])
    assert (end["bytes"], end["error"]) == (8_000_000, None)
    assert end["via"] != plain.address(dsl, family)
    assert end["pause"] < SOON_S


def test_a_lease_renewed_as_it_was_disturbs_nobody(plain: Location, start_braid: StartBraid) -> None:
    daemon = start_braid(plain.net)
    lte = plain.net.uplinks["lte"]
    with plain.start("open_connections", 0, 4, plain.net.server()) as held:
        held_by(held)
        for lifetime in (600, 900):
            words = f"{lte.address4}/24 dev lte valid_lft {lifetime} preferred_lft {lifetime}"
            plain.net.host.ip(f"address replace {words}")
        assert_all_go_on(daemon, held)


def test_flows_go_on_by_a_new_gateway(plain: Location, family: int, start_braid: StartBraid) -> None:
    daemon = start_braid(plain.net)
    lte = plain.net.uplinks["lte"]
    ours, isp = lte.near, lte.far
    old, new = (lte.gateway4, f"100.64.{lte.index}.9") if family == 4 else ("fe80::1", "fe80::9")
    length, nodad = (24, "") if family == 4 else (64, "nodad")
    source = f"src {lte.address4}" if family == 4 else ""

    def known() -> str | None:
        found = {each["name"]: each[f"ipv{family}"] for each in daemon.json("uplinks")["uplinks"]}
        way_out = found.get("lte")
        return way_out["gateway"] if way_out else None

    with plain.start("open_connections", 0, 4, plain.net.server(1, family)) as held:
        held_by(held)
        keep_other_addresses(isp)
        isp.namespace.ip(f"address add {new}/{length} dev {isp.device} {nodad}")
        route = f"default via {new} dev {ours.device} metric {lte.metric} proto dhcp {source}"
        ours.namespace.run(["ip", f"-{family}", "route", "replace", *route.split()])
        wait_until(lambda: known() == new, what="the new gateway to be known", timeout=SOON_S)
        isp.namespace.ip(f"address delete {old}/{length} dev {isp.device}")
        assert_all_go_on(daemon, held)
        assert len(seen_addresses(plain, family)) == 2
