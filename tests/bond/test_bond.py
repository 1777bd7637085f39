"""One flow over all uplinks: joining, losing and finding a hub, and the effect on flows."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from braid_lab import remote_hub
from braid_lab.net.faults import black_hole
from braid_lab.net.links import LinkSpec
from braid_lab.net.namespace import Namespace
from braid_lab.net.remote_host import remote_host
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.observe import ask_tcp, differences, kernel_state, states
from braid_lab.process import Output, Process, run, wait_until
from braid_lab.product import Braid, binary
from braid_lab.remote_hub import Hub
from conftest import PLAIN, ROUND_ROBIN, MakeNetwork, StartBraid, StartHub, configured

#: Two lines; a download over 20 Mbit/s needs both.
LINE = LinkSpec(rate="20Mbit/s", delay="5ms", queue="100ms")
LINES = (UplinkSpec("dsl", LINE), UplinkSpec("lte", LINE))

FAILED, USAGE, DEGRADED = 1, 2, 4


def queue_at(hub: Hub) -> dict[str, int]:
    """Return what waits at a hub for its only client, and what became of the rest."""
    (client,) = hub.json("clients")["clients"]
    queue: dict[str, int] = client["queue"]
    return queue


def bond(daemon: Braid) -> dict[str, Any]:
    return daemon.json("bond")


def links(daemon: Braid) -> dict[str, dict[str, Any]]:
    """Return the links that carry packets, by uplink."""
    carrying = ("active", "returning")
    return {link["uplink"]: link for link in bond(daemon)["links"] if link["state"] in carrying}


def join(daemon: Braid, hub: Hub, *addresses: str) -> None:
    """Join a hub and wait until both uplinks carry packets."""
    daemon.call("join", hub.invite("home", *addresses))
    wait_until(lambda: set(links(daemon)) == {"dsl", "lte"}, what="both links to carry packets")
    wait_until(lambda: states(daemon).get("bond") == "up", what="the bond to take flows")


def seen_from(net: Topology, place: Namespace, family: int = 4, count: int = 1) -> set[str]:
    """Return the addresses that a server sees for connections from a place."""
    return {address for address, _ in ask_tcp(place, count, net.server(1, family))}


class Download(threading.Thread):
    """A background download that is compared with the original file."""

    def __init__(self, place: Namespace, server: str, size: int, target: Path) -> None:
        """Start it at once."""
        super().__init__()
        self.size, self.target, self.problem = size, target, ""
        url = f"http://{server}/bytes/{size}"
        self._words = ["curl", "-sSf", "--max-time", "50", url, "-o", str(target)]
        self._place = place
        self.start()

    def run(self) -> None:
        """Fetch the file."""
        said = self._place.run(self._words, check=False)
        self.problem = said.text

    def came(self) -> int:
        """Return how many bytes have arrived."""
        return self.target.stat().st_size if self.target.exists() else 0

    def finish(self) -> None:
        """Wait for its end; all of it must have arrived."""
        self.join(60)
        assert not self.is_alive()
        assert self.problem == ""
        assert self.came() == self.size


def test_a_download_takes_both_uplinks_and_outlives_one(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    net = make_network(*LINES)
    hub = start_hub(net)
    daemon = start_braid(net)
    join(daemon, hub)
    before = links(daemon)
    # With three quarters over one line it would take twice as long as over two; curl's limit allows for one.
    download = Download(net.host, net.server(1), 30_000_000, net.scratch / f"{net.host.name}.got")
    wait_until(lambda: download.came() > 12_000_000, what="the download to get going", timeout=40)
    after = links(daemon)
    carried = {name: after[name]["rx_bytes"] - before[name]["rx_bytes"] for name in after}
    assert all(each > 3_000_000 for each in carried.values()), carried
    (answer,) = daemon.json("explain", net.server(1))["answers"]
    (explained,) = answer["links"]
    assert (explained["inner"], explained["remote"]) == (answer["flows"][0]["inner"], f"{net.server(1)}:80")
    shares = {each["uplink"]: each["share"] for each in explained["rx"]}
    # Of the last seconds, in which both lines of one rate were full.
    assert set(shares) == {"dsl", "lte"}
    assert min(shares.values()) > 0.25
    assert sum(shares.values()) == pytest.approx(1.0)
    assert {each["uplink"] for each in explained["tx"]} <= {"dsl", "lte"}
    assert explained["why"] == "each packet takes the link by which it arrives first"
    wait_until(lambda: queue_at(hub)["lowered_windows"] > 0, what="the hub to keep its queue short by windows")
    with black_hole(net.uplinks["dsl"]):
        wait_until(lambda: set(links(daemon)) == {"lte"}, what="the dead link to be left")
        assert states(daemon)["bond"] == "up"
        download.finish()
        assert seen_from(net, net.host) == {hub.far.address4}
    wait_until(lambda: set(links(daemon)) == {"dsl", "lte"}, what="the link to come back", timeout=30)


def test_what_a_bond_carries_is_a_lower_bound_of_its_uplinks(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    rates = {"dsl": 16e6, "lte": 8e6}
    net = make_network(
        *(
            UplinkSpec(name, LinkSpec(rate=f"{rate / 1e6:g}Mbit/s", delay="10ms", queue="100ms"))
            for name, rate in rates.items()
        )
    )
    daemon = start_braid(net)
    join(daemon, start_hub(net))

    def known() -> dict[str, float]:
        uplinks = daemon.json("uplinks")["uplinks"]
        found = {each["name"]: each.get("rx_capacity") for each in uplinks if each["name"] in rates}
        return {name: of["rate_bit_s"] / rates[name] for name, of in found.items() if of}

    assert max(known().values(), default=0) < 0.5
    download = Download(net.host, net.server(1), 24_000_000, net.scratch / f"{net.host.name}.got")
    wait_until(lambda: len(shares := known()) == 2 and min(shares.values()) > 0.9, what="both lines to be known")
    download.finish()
    assert max(known().values()) < 1.1


def test_a_dead_hub_leaves_the_uplinks_and_a_live_one_takes_the_flows_back(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    net = make_network(*PLAIN)
    hub = start_hub(net)
    daemon = start_braid(net, *ROUND_ROBIN)
    join(daemon, hub)
    assert seen_from(net, net.host, count=4) == {hub.far.address4}

    hub.kill9()
    # A connection that gets no reply through the bond detects it, and is repeated over an uplink.
    own = {uplink.address4 for uplink in net.uplinks.values()}
    assert seen_from(net, net.host) <= own
    wait_until(lambda: bond(daemon)["state"] == "lost", what="the hub to be missed")
    assert seen_from(net, net.host, count=4) == own
    said = daemon.call("status", check=False)
    assert said.status == DEGRADED
    assert "(bond-unreachable)" in said.stdout

    hub.start()
    wait_until(lambda: states(daemon)["bond"] == "up", what="the bond to take flows again", timeout=40)
    assert seen_from(net, net.host, count=4) == {hub.far.address4}
    kinds = [event["kind"] for event in daemon.json("events")["events"]]
    assert {"bond-joined", "bond", "bond-link"} <= set(kinds), kinds


def test_what_must_not_leave_the_bond_is_blocked_without_it(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    net = make_network(*PLAIN)
    hub = start_hub(net)
    file = configured(net, 'policy = "rr"\n[bond]\nfallback = "block"\n[[rule]]\nport = 443\nuse = "bond"\n')
    daemon = start_braid(net, "--config", file)
    join(daemon, hub)
    daemon.kill9()
    words = ["curl", "-sS", "--max-time", "4", f"http://{net.server(1)}/address"]
    said = net.host.run(words, check=False)
    assert said.status != 0, said.text
    daemon.up("--config", file)
    wait_until(lambda: states(daemon).get("bond") == "up", what="the bond to take flows again", timeout=20)
    assert seen_from(net, net.host) == {hub.far.address4}
    # A restarted hub proves itself by its reply. Each further proof would take twice as long.
    for _ in range(2):
        hub.kill9()
        assert net.host.run(words, check=False).status != 0
        wait_until(lambda: states(daemon).get("bond") != "up", what="the bond to be lost")
        hub.start()
        wait_until(lambda: states(daemon).get("bond") == "up", what="the bond to take flows again", timeout=20)
    told = [event for event in daemon.json("events")["events"] if event.get("uplink") == "bond"]
    assert not [event for event in told if "waits for" in (event.get("evidence") or "")], told
    assert seen_from(net, net.host) == {hub.far.address4}


def test_a_hub_that_is_restarted_costs_no_session(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(*LINES)
    with remote_host(net) as far:
        place = far.namespace
        before = kernel_state(place)
        with remote_hub.running_hub(far, net.scratch / place.name) as hub:
            daemon = start_braid(net)
            join(daemon, hub)
            with asking(net) as asker:
                download = Download(net.host, net.server(1), 12_000_000, net.scratch / f"{net.host.name}.restarted")
                for stop in (hub.stop, hub.kill9):
                    grown(download.came, 500_000)
                    grown(asker.answers, 5)
                    stop()
                    # The server repeats unacknowledged data, and nobody refuses it.
                    grown(lambda: dropped(place), 1)
                    hub.start()
                download.finish()
                grown(asker.answers, 5)
            assert asker.addresses() == {far.address4}
            # Also while it runs.
            said = run(hub.words("down"), namespace=place.name).stdout
            assert "device braid-hub: removed" in said
            assert differences(before, kernel_state(place)) == []
            assert "nothing to undo" in run(hub.words("down"), namespace=place.name).stdout


def test_the_bonds_device_outlives_its_daemon(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    """Without it the kernel would refuse incoming packets, and programs that watch addresses would give up."""
    net = make_network(*LINES)
    before = kernel_state(net.host)
    hub = start_hub(net)
    daemon = start_braid(net)
    join(daemon, hub)
    made = device(net.host)
    with asking(net) as asker:
        download = Download(net.host, net.server(1), 12_000_000, net.scratch / f"{net.host.name}.outlived")
        for stop in (daemon.stop, daemon.kill9):
            grown(download.came, 500_000)
            grown(asker.answers, 5)
            stop()
            assert device(net.host) == made
            # The next daemon has uplinks, but no reply from the hub yet.
            hub.kill9()
            daemon.up()
            assert states(daemon)["bond"] == "down"
            hub.start()
            wait_until(lambda: states(daemon).get("bond") == "up", what="the bond to take flows again", timeout=20)
            assert device(net.host) == made
        download.finish()
        grown(asker.answers, 5)
    assert asker.addresses() == {hub.far.address4}
    daemon.call("leave")
    assert device(net.host) is None
    hub.revoke("home")
    join(daemon, hub)
    assert device(net.host) is not None
    daemon.call("down")
    assert differences(before, kernel_state(net.host)) == []


def device(place: Namespace) -> tuple[int, frozenset[str]] | None:
    """Return the index and the global addresses of a host's bond device."""
    told = place.run(["ip", "-json", "address", "show", "dev", "braid-bond"], check=False)
    if told.status != 0:
        return None
    (link,) = json.loads(told.stdout)
    given = {entry["local"] for entry in link["addr_info"] if entry["scope"] == "global"}
    return link["ifindex"], frozenset(given)


def test_a_download_outlives_a_restart_of_the_hubs_machine(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    net = make_network(*LINES)
    with remote_host(net) as far:
        place = far.namespace
        with remote_hub.running_hub(far, net.scratch / place.name) as hub:
            daemon = start_braid(net)
            join(daemon, hub)
            download = Download(net.host, net.server(1), 12_000_000, net.scratch / f"{net.host.name}.rebooted")
            grown(download.came, 500_000)
            # The machine stops, and all state of its kernel is lost.
            hub.stop()
            net.internet.ip(f"route add blackhole {far.address4}")
            run(hub.words("down"), namespace=place.name)
            place.run(["conntrack", "--flush"])
            # The machine boots: first the unit, then the network, and only after a packet of the server the hub.
            run(hub.words("boot", "--config", hub.file), namespace=place.name)
            net.internet.ip(f"route del blackhole {far.address4}")
            wait_until(lambda: unknown(place) > 0, what="the server to send to a hub that is not there", timeout=20)
            hub.start()
            # The client sends nothing itself: without the daemon's keepalives nothing would go on.
            download.finish()


def unknown(place: Namespace) -> int:
    """Return how many packets of unknown connections were dropped since the machine started."""
    told = place.run(["nft", "--json", "list", "chain", "inet", "braid_hub_boot", "unknown"])
    rules = [entry["rule"]["expr"] for entry in json.loads(told.stdout)["nftables"] if "rule" in entry]
    return sum(part["counter"]["packets"] for parts in rules for part in parts if "counter" in part)


class Asker(Process):
    """A program on the host that queries a server repeatedly from one UDP socket, as a call does."""

    def __init__(self, net: Topology) -> None:
        """Start it."""
        argv = [sys.executable, "-m", "braid_lab.clients.udp_poller", "20", net.server(1)]
        super().__init__(argv, log=net.scratch / f"{net.host.name}-asker", namespace=net.host.name)

    def answers(self) -> int:
        """Return how many replies have arrived."""
        return len(self.stdout().splitlines())

    def addresses(self) -> set[str]:
        """Return the addresses that the server saw."""
        return set(self.stdout().split())


@contextlib.contextmanager
def asking(net: Topology) -> Iterator[Asker]:
    """Run an asker, which has had its first reply."""
    with Asker(net) as asker:
        grown(asker.answers, 1)
        yield asker


def grown(count: Callable[[], int], by: int) -> None:
    """Wait until a counter has grown."""
    before = count()
    wait_until(lambda: count() >= before + by, what=f"{by} more", timeout=20)


def dropped(place: Namespace) -> int:
    """Return how many packets for clients were dropped since the hub left its device."""
    told = json.loads(place.run(["ip", "-json", "-stats", "link", "show", "braid-hub"]).stdout)
    counted: int = told[0]["stats64"]["tx"]["dropped"]
    return counted


def test_data_goes_in_the_clear_where_both_ends_say_so(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    net = make_network(*LINES)
    hub = start_hub(net)
    daemon = start_braid(net, "--config", configured(net, '[bond]\nencapsulation = "gre"\n'))
    join(daemon, hub)

    def clear() -> dict[str, bool]:
        return {name: link["cleartext"] for name, link in links(daemon).items()}

    assert seen_from(net, net.host) == {hub.far.address4}
    assert clear() == {"dsl": False, "lte": False}, "one end alone wants it"
    hub.configure("gre = true\n")
    hub.stop()
    hub.start()
    wait_until(lambda: clear() == {"dsl": True, "lte": True}, what="both links to pass GRE")
    assert "in the clear" in daemon.call("bond").stdout
    download = Download(net.host, net.server(1), 1_000_000, net.scratch / f"{net.host.name}.got")
    download.finish()
    assert clear() == {"dsl": True, "lte": True}


def test_rules_send_flows_past_the_bond_or_into_it(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    net = make_network(*PLAIN)
    hub = start_hub(net)

    def ruled(flows: str) -> str:
        return (
            f'policy = "rr"\n[bond]\nflows = "{flows}"\n'
            f'[[rule]]\nname = "past"\ndestination = "{net.server(2)}"\nuse = "balance"\n'
            f'[[rule]]\nname = "one"\ndestination = "{net.server(3)}"\nuse = "lte"\n'
            f'[[rule]]\nname = "into"\ndestination = "{net.server(4)}"\nuse = "bond"\nclass = "redundant"\n'
        )

    daemon = start_braid(net, "--config", configured(net, ruled("all")))
    join(daemon, hub)
    own = {uplink.address4 for uplink in net.uplinks.values()}

    def seen(number: int) -> set[str]:
        return {address for address, _ in ask_tcp(net.host, 2, net.server(number))}

    assert (seen(1), seen(2), seen(3), seen(4)) == (
        {hub.far.address4},
        own,
        {net.uplinks["lte"].address4},
        {hub.far.address4},
    )
    (answer,) = daemon.json("explain", net.server(1))["answers"]
    assert (answer["outcome"], answer["uplink"]) == ("uplink", "bond"), answer
    configured(net, ruled("ruled"))
    daemon.call("reload")
    assert (seen(1), seen(4)) == (own, {hub.far.address4})


@pytest.mark.parametrize("family", [4, 6])
def test_clients_behind_a_gateway_go_through_the_bond(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid, family: int
) -> None:
    net = make_network(*PLAIN, lan_clients=1)
    hub = start_hub(net)
    daemon = start_braid(net)
    # The outer IP version differs from the inner one: neither depends on the other.
    join(daemon, hub, hub.far.address(10 - family).join("[]") if family == 4 else hub.far.address4)
    for place in (net.host, net.clients[0]):
        assert seen_from(net, place, family, 2) == {hub.far.address(family)}
        place.run(["ping", "-c", "2", "-i", "0.1", "-W", "3", net.server(1, family)])
    server = net.server(1) if family == 4 else f"[{net.server(1, 6)}]"
    download = Download(net.clients[0], server, 3_000_000, net.scratch / f"{net.host.name}.got")
    download.finish()


def test_flows_wait_for_a_daemon_that_was_killed_and_new_ones_do_not(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    net = make_network(*LINES)
    hub = start_hub(net)
    daemon = start_braid(net)
    join(daemon, hub)
    download = Download(net.host, net.server(1), 20_000_000, net.scratch / f"{net.host.name}.got")
    wait_until(lambda: download.came() > 2_000_000, what="the download to get going", timeout=30)
    daemon.kill9()
    own = {uplink.address4 for uplink in net.uplinks.values()}
    assert seen_from(net, net.host) <= own
    daemon.up()
    wait_until(lambda: states(daemon).get("bond") == "up", what="the bond to take flows again", timeout=20)
    download.finish()
    assert seen_from(net, net.host) == {hub.far.address4}


def test_revoking_twice_is_no_failure_and_revoking_nobody_is_a_usage_error(
    make_network: MakeNetwork, start_hub: StartHub
) -> None:
    hub = start_hub(make_network(*PLAIN))
    hub.invite("home")

    def revoked(name: str) -> Output:
        return run(hub.words("revoke", name), namespace=hub.far.namespace.name, check=False)

    assert "revoked; nobody had used" in revoked("home").stdout
    again = revoked("home")
    assert (again.status, "revoked before" in again.stdout) == (0, True), again.text
    nobody = revoked("hmoe")
    assert nobody.status == USAGE, nobody.text
    assert "there is no client hmoe" in nobody.stderr, nobody.text


def test_a_token_is_good_for_one_machine_and_says_so(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    net = make_network(*PLAIN)
    hub = start_hub(net)
    daemon = start_braid(net)
    token = hub.invite("home")
    bad = daemon.call("join", token[:-4], check=False)
    assert (bad.status, bad.stdout) == (FAILED, "")
    assert "not complete" in bad.stderr
    daemon.call("join", token)
    kept = daemon.state_dir / "bond.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    again = daemon.call("join", token)
    assert "up" in again.stdout, "the same machine may say it again"
    other = daemon.call("join", hub.invite("other"), check=False)
    assert other.status == FAILED
    assert "joined the hub at" in other.stderr

    daemon.call("leave")
    assert not kept.exists()
    assert bond(daemon)["state"] == "none"
    wait_until(lambda: seen_from(net, net.host) != {hub.far.address4}, what="flows to leave the bond")
    # It has another key now, and counts as another machine.
    used = daemon.call("join", token, check=False)
    assert used.status == FAILED, used.text
    assert "used by another machine" in used.stderr
    assert not kept.exists()
    assert bond(daemon)["state"] == "none"


def test_the_daemon_follows_its_hub_to_another_key_and_keeps_it(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    net = make_network(*LINES)
    hub = start_hub(net)
    daemon = start_braid(net)
    join(daemon, hub)
    hub.json("rotate-key")
    # Its next handshake would come within half an hour; a hub that is killed makes it come at once.
    hub.kill9()
    hub.start()
    wait_until(lambda: hub.json("status")["previous_key"]["clients"] == [], what="the client to follow", timeout=20)
    hub.json("rotate-key", "--end-overlap")
    daemon.kill9()
    daemon.up()
    wait_until(lambda: states(daemon).get("bond") == "up", what="the stored key to be used", timeout=20)
    assert seen_from(net, net.host) == {hub.far.address4}
    assert hub.json("status")["handshakes"]["retired-key"] == 0

    # This time it is away.
    daemon.stop()
    hub.json("rotate-key")
    hub.json("rotate-key", "--end-overlap")
    daemon.up()
    told = "its key was replaced"
    wait_until(lambda: any(told in problem for problem in bond(daemon)["problems"]), what="the reason", timeout=20)
    assert [problem["code"] for problem in hub.json("status")["health"]] == ["key-missed"]
    daemon.call("leave")
    hub.revoke("home")
    join(daemon, hub)
    assert not any(told in problem for problem in bond(daemon)["problems"])


def test_a_thief_of_the_disk_is_not_the_client_whose_key_is_sealed(
    make_network: MakeNetwork,
    start_hub: StartHub,
    start_braid: StartBraid,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = make_network(*LINES)
    hub = start_hub(net)
    credential = tmp_path / "braid.seal"
    credential.write_bytes(bytes(32))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    daemon = start_braid(net)
    join(daemon, hub)
    kept = daemon.state_dir / "bond.json"
    assert set(json.loads(kept.read_text())) == {"sealed"}
    daemon.kill9()
    daemon.up()
    wait_until(lambda: states(daemon).get("bond") == "up", what="the sealed key to be used", timeout=20)
    assert hub.json("status")["clients"]["connected"] == 1
    daemon.stop()
    for length, told in ((31, "has 31 bytes, and 32 are needed"), (33, "sealed by another credential braid.seal")):
        credential.write_bytes(bytes(length))
        refused = daemon.call("up", check=False)
        assert (refused.status, told in refused.stderr) == (FAILED, True), refused.text
    credential.unlink()
    # The thief starts the program elsewhere, and has no credential.
    refused = daemon.call("up", check=False)
    assert refused.status == FAILED
    assert "bond.json: sealed, and there is no credential braid.seal" in refused.stderr
    assert "LoadCredentialEncrypted=" in refused.stderr
    # The owner can join anew.
    daemon.call("leave")
    assert not kept.exists()


def test_a_hub_that_nobody_finds_is_named_with_what_was_tried(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    net = make_network(*PLAIN)
    hub = start_hub(net)
    daemon = start_braid(net, *ROUND_ROBIN)
    nowhere = daemon.call("join", hub.invite("nobody", "hub.invalid"), check=False)
    assert nowhere.status == DEGRADED, nowhere.text
    assert "hub.invalid resolves to nothing" in nowhere.stdout
    daemon.call("leave")

    token = hub.invite("home")
    hub.stop()
    silent = daemon.call("join", token, check=False)
    assert silent.status == DEGRADED, silent.text
    assert "has not answered" in silent.stdout
    assert set(silent.stdout.split()) >= {"dsl", "lte", "trying"}
    own = {uplink.address4 for uplink in net.uplinks.values()}
    assert seen_from(net, net.host, count=2) == own, "without its hub the machine goes on"
    hub.start()
    wait_until(lambda: states(daemon).get("bond") == "up", what="the hub to be found after all", timeout=30)


def test_joined_while_nothing_runs_it_is_there_at_the_next_start(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    net = make_network(*PLAIN)
    hub = start_hub(net)
    daemon = start_braid(net)
    daemon.call("down")
    # From standard input, hidden from other users of the machine.
    words: list[str | Path] = [binary(), "--run-dir", daemon.run_dir, "--state-dir", daemon.state_dir, "join", "-"]
    said = net.host.run(words, text=hub.invite("home") + "\n")
    assert said.stdout == "joined: braid up will call the hub\n"
    daemon.up()
    wait_until(lambda: states(daemon).get("bond") == "up", what="the bond to take flows", timeout=20)
    assert seen_from(net, net.host) == {hub.far.address4}
    daemon.call("down")
    assert daemon.call("leave").stdout.startswith("left:")
    daemon.up()
    assert bond(daemon)["state"] == "none"


def test_links_follow_the_uplinks(make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid) -> None:
    net = make_network(*LINES)
    hub = start_hub(net)
    daemon = start_braid(net)
    join(daemon, hub)
    download = Download(net.host, net.server(1), 20_000_000, net.scratch / f"{net.host.name}.got")
    wait_until(lambda: download.came() > 2_000_000, what="the download to get going", timeout=30)
    before = links(daemon)["dsl"]["rx_bytes"]
    # Another address, as from a provider every night, and then no line at all.
    net.host.ip(
        "address del 100.64.1.2/24 dev dsl",
        "address add 100.64.1.7/24 dev dsl",
        "route add default via 100.64.1.1 dev dsl metric 100",
    )

    def carried() -> int:
        link = links(daemon).get("dsl")
        return int(link["rx_bytes"]) if link else 0

    wait_until(lambda: carried() > before + 500_000, what="the link to go on", timeout=20)
    net.host.ip("link set lte down")
    wait_until(lambda: {link["uplink"] for link in bond(daemon)["links"]} == {"dsl"}, what="the link to be gone")
    download.finish()
    assert seen_from(net, net.host) == {hub.far.address4}


def test_a_used_up_quota_is_kept_and_spares_its_uplink(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    net = make_network(*LINES)
    hub = start_hub(net)
    file = configured(net, '[[uplink]]\ndevice = "dsl"\n[[uplink]]\ndevice = "lte"\nquota = "2 MB/day"\n')
    daemon = start_braid(net, "--config", file)
    join(daemon, hub)

    def codes() -> list[str]:
        return [finding["code"] for finding in daemon.json("status")["health"]]

    # A link's share of a download does not matter to this test.
    for number in range(5):
        Download(net.host, net.server(1), 10_000_000, net.scratch / f"{net.host.name}.got{number}").finish()
        uplinks = {uplink["name"]: uplink for uplink in daemon.json("uplinks")["uplinks"]}
        if uplinks["lte"]["quota_used_bytes"] >= 2_000_000:
            break
    wait_until(lambda: "quota-exhausted" in codes(), what="the quota to be used up")
    # A quota spares the line for overflow, and the report says so of its link.
    wait_until(
        lambda: any(link["why"].startswith("its quota") for link in bond(daemon)["links"]),
        what="the link to be spared",
    )
    daemon.call("down")
    daemon.up("--config", file)
    assert "quota-exhausted" in codes(), "what was carried outlives the daemon"
    uplinks = {uplink["name"]: uplink for uplink in daemon.json("uplinks")["uplinks"]}
    assert uplinks["lte"]["quota_used_bytes"] >= uplinks["lte"]["quota_bytes"] == 2_000_000
