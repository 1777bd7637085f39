"""Uplinks that somebody sets aside, and rules that somebody switches off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from braid_lab.experiments.balance.uplink_failure import Location
from braid_lab.net.faults import black_hole, unplugged
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.observe import ask_tcp, by_uplink, states
from braid_lab.process import Process, wait_until
from braid_lab.product import Braid
from conftest import LINES, ROUND_ROBIN, MakeNetwork, StartBraid, StartHub, configured

FAILED, USAGE, DEGRADED = 1, 2, 4
SLOW = (
    UplinkSpec("dsl", LinkSpec(rate="10Mbit/s", delay="10ms")),
    UplinkSpec("lte", LinkSpec(rate="10Mbit/s", delay="10ms")),
)


def uplink(daemon: Braid, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [each for each in daemon.json("status")["uplinks"] if each["name"] == name]
    return found[0]


def shares(net: Topology, count: int = 4) -> dict[str, int]:
    """Return how many of COUNT new connections take each uplink."""
    return by_uplink(net, ask_tcp(net.host, count, net.server(1)))


def opened(daemon: Braid) -> str | None:
    """Return the uplink of a connection that is open, if there is one."""
    return next((flow["uplink"] for flow in daemon.json("flows")["flows"] if flow["state"] == "established"), None)


def events(daemon: Braid, kind: str) -> list[dict[str, Any]]:
    return [each for each in daemon.json("events")["events"] if each["kind"] == kind]


def test_a_paused_uplink_takes_no_new_flows_and_keeps_its_connections(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    net = make_network(*SLOW)
    daemon = start_braid(net, *ROUND_ROBIN)
    url = f"http://{net.server()}/bytes/4000000"
    argv = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{size_download}", url]
    logs = [net.scratch / f"download-{number}" for number in range(2)]
    with (
        Process(argv, log=logs[0], namespace=net.host.name) as first,
        Process(argv, log=logs[1], namespace=net.host.name) as second,
    ):
        wait_until(lambda: len(daemon.json("flows", "--uplink", "lte")["flows"]) == 1, what="one download on each")
        said = daemon.call("uplink", "pause", "lte").stdout
        assert "paused" in said
        assert "# flows that are still on lte: 1" in said
        (flow,) = daemon.json("flows", "--uplink", "lte")["flows"]
        assert flow["why"].endswith("its uplink is paused, and it stays until it ends")
        assert shares(net) == {"dsl": 4, "lte": 0}
        for download in (first, second):
            assert download.wait(timeout=30).stdout.split() == ["200", "4000000"]
    shown = uplink(daemon, "lte")
    assert (shown["state"], shown["share"], shown["pause"]["by"]) == ("paused", 0, "command-line")
    assert shown["since_unix_ms"] == shown["pause"]["since_unix_ms"]
    assert shown["why"].startswith("on the command line, ")
    assert shown["rtt_ms"] is not None, "it is probed"
    assert "lte takes no new flows: paused: on the command line" in daemon.call("explain", net.server()).stdout
    assert 'braid_uplink_paused{uplink="lte"} 1' in net.host.run(
        ["curl", "-sS", "--unix-socket", daemon.run_dir / "braid.sock", "http://braid/v1/metrics"]
    ).stdout.replace(".0\n", "\n")
    daemon.call("uplink", "resume", "lte")
    assert states(daemon)["lte"] == "up"
    assert shares(net) == {"dsl": 2, "lte": 2}
    assert [each["uplink"] for each in events(daemon, "uplink-paused")] == ["lte"]
    (resumed,) = events(daemon, "uplink-resumed")
    assert resumed["text"] == "resumed on the command line"
    again = daemon.call("uplink", "resume", "lte")
    assert "nothing to do: lte is not paused" in again.stderr
    assert again.stdout.startswith("UPLINK")
    assert daemon.call("uplink", "pause", "sat", check=False).status == USAGE


def test_a_pause_closes_connections_at_once_if_asked_to(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(*SLOW)
    daemon = start_braid(net, *ROUND_ROBIN)
    argv = ["curl", "-sS", "-o", "/dev/null", f"http://{net.server()}/bytes/40000000"]
    with Process(argv, log=net.scratch / "download", namespace=net.host.name) as download:
        carrier = wait_until(lambda: opened(daemon), what="the download")
        assert "# flows" not in daemon.call("uplink", "pause", carrier, "--now").stdout.replace(
            f"# flows that are still on {carrier}", "# closing"
        )
        ended = download.wait(timeout=10)
        assert ended.status != 0
    (event,) = events(daemon, "uplink-paused")
    assert event["evidence"] == "new flows take the other uplinks; 1 connection told"


def test_a_pause_moves_connections_that_are_being_opened_if_asked_to(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    """An answer takes 3 s on one line, so only the other one opens the connection in time."""
    net = make_network(UplinkSpec("sat", LinkSpec(rate="10Mbit/s", delay="1500ms")), SLOW[0])
    daemon = start_braid(net, *ROUND_ROBIN)
    argv = ["curl", "-sS", "-o", "/dev/null", "-w", "%{time_connect}", f"http://{net.server()}/bytes/1000"]
    logs = [net.scratch / f"download-{number}" for number in range(2)]
    with (
        Process(argv, log=logs[0], namespace=net.host.name) as first,
        Process(argv, log=logs[1], namespace=net.host.name) as second,
    ):
        wait_until(lambda: daemon.json("flows", "--uplink", "sat")["flows"], what="a SYN on the slow line")
        daemon.call("uplink", "pause", "sat", "--now")
        for download in (first, second):
            ended = download.wait(timeout=10)
            assert ended.status == 0
            assert float(ended.stdout) < 0.9, "the client itself repeats its SYN after 1 s"
    (event,) = events(daemon, "uplink-paused")
    assert event["evidence"] == "new flows take the other uplinks; 1 connection being opened moved"


def test_a_udp_flow_moves_with_its_next_packet(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    location = Location("host", make_network(*LINES))
    daemon = start_braid(location.net, *ROUND_ROBIN)
    dsl, lte = location.net.uplinks.values()
    with location.start("udp_poller", 50, location.net.server(1)) as asking:
        first = asking.wait_output(r"^(\S+)\n").group(1)
        carrier, other = (dsl, lte) if first == dsl.address4 else (lte, dsl)
        daemon.call("uplink", "pause", carrier.name)
        asking.wait_output(f"^{other.address4}$")

        def moved() -> set[str]:
            flows = daemon.json("flows", "--uplink", other.name)["flows"]
            return {each["why"] for each in flows if each["previous_uplink"] == carrier.name}

        wait_until(lambda: moved() == {"moved, its uplink took no flows any more"}, what="the flow to have moved")


def test_whatever_happens_to_a_paused_line_is_no_problem_and_no_alarm(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    net = make_network(*LINES)
    config = """policy = "rr"
        [[alarm]]
        name = "line"
        when = "uplink-dead"
        for = "0 s"
        command = ["/bin/true"]
        [[alarm]]
        name = "lossy"
        when = "loss"
        at = "20 %"
        for = "0 s"
        command = ["/bin/true"]
        [[alarm]]
        name = "any"
        when = "problem"
        for = "0 s"
        command = ["/bin/true"]
    """
    daemon = start_braid(net, "--config", configured(net, config))
    daemon.call("uplink", "pause", "lte")
    with black_hole(net.uplinks["lte"]):
        wait_until(lambda: "; 0 of " in uplink(daemon, "lte")["why"], what="silence", timeout=15)
        assert states(daemon) == {"dsl": "up", "lte": "paused"}
        assert "# health: good" in daemon.call("status").stdout
    with unplugged(net.uplinks["lte"]):
        wait_until(lambda: "its device: no carrier" in uplink(daemon, "lte")["why"], what="the cable", timeout=15)
        assert states(daemon) == {"dsl": "up", "lte": "paused"}
        assert "# health: good" in daemon.call("status").stdout
    # An alarm about the other line is raised as ever, so conditions were looked at in between.
    with unplugged(net.uplinks["dsl"]):
        wait_until(lambda: events(daemon, "alarm"), what="the alarm", timeout=10)
    assert {each["text"].rpartition(" ")[2] for each in events(daemon, "alarm")} <= {"dsl", "uplink-down"}


def test_the_only_uplink_that_works_is_paused_by_force_alone(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    net = make_network(*LINES)
    daemon = start_braid(net, *ROUND_ROBIN)
    fetch = ["curl", "-sSf", "--max-time", "3", "-o", "/dev/null", f"http://{net.server()}/bytes/1000"]
    daemon.call("uplink", "pause", "dsl")
    refused = daemon.call("uplink", "pause", "lte", check=False)
    assert refused.status == FAILED
    assert "lte is the only uplink that works: nothing would carry new flows" in refused.stderr
    assert "--force" in refused.stderr
    assert states(daemon) == {"dsl": "paused", "lte": "up"}
    net.host.run(fetch)
    # If the last one fails, a paused one stands in until it is back.
    with black_hole(net.uplinks["lte"]):
        wait_until(lambda: uplink(daemon, "dsl")["share"] == 1, what="dsl to stand in", timeout=10)
        shown = uplink(daemon, "dsl")
        assert shown["state"] == "paused"
        assert shown["why"].endswith("; used all the same, no other uplink works")
        net.host.run(fetch)
    wait_until(lambda: states(daemon)["lte"] == "up", what="lte to be back", timeout=30)
    assert shares(net) == {"dsl": 0, "lte": 4}
    # By force nothing stands in.
    daemon.call("uplink", "pause", "dsl", "--force")
    daemon.call("uplink", "pause", "lte", "--force")
    status = daemon.call("status", check=False)
    assert status.status == DEGRADED
    assert "dsl: paused by force, and no other uplink works (uplink-paused)" in status.stdout
    assert "fix: braid uplink resume dsl" in status.stdout
    assert net.host.run(fetch, check=False).status != 0
    daemon.call("uplink", "resume", "lte")
    net.host.run(fetch)


def test_pauses_outlive_reloads_and_daemons_until_their_time_is_over(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    net = make_network(*LINES)
    config = configured(net, RULED)
    daemon = start_braid(net, "--config", config)
    daemon.call("uplink", "pause", "lte")
    daemon.call("rule", "pause", "bank")
    since = uplink(daemon, "lte")["pause"]
    daemon.call("reload")
    assert uplink(daemon, "lte")["pause"] == since
    daemon.kill9()
    daemon.up("--config", config)
    assert uplink(daemon, "lte")["pause"] == since
    assert shares(net) == {"dsl": 4, "lte": 0}
    assert paused_rules(daemon) == ["bank"]
    daemon.call("down")
    daemon.up("--config", config)
    assert states(daemon)["lte"] == "paused"
    # Another pause replaces it.
    daemon.call("uplink", "pause", "lte", "--for", "2 s")
    daemon.call("rule", "pause", "bank", "--for", "2 s")
    assert "for 2 s more" in uplink(daemon, "lte")["why"] or "for 1 s more" in uplink(daemon, "lte")["why"]
    wait_until(lambda: states(daemon)["lte"] == "up", what="the pause to end", timeout=6)
    wait_until(lambda: paused_rules(daemon) == [], what="the rule's pause to end", timeout=6)
    assert events(daemon, "uplink-resumed")[-1]["text"] == "resumed since its time is over"
    assert events(daemon, "rule-resumed")[-1]["text"] == "rule bank resumed since its time is over"
    assert json.loads((daemon.state_dir / "pauses.json").read_text()) == {"uplinks": {}, "rules": {}}
    for wrong in ("0 s", "2 years", "soon"):
        assert daemon.call("uplink", "pause", "lte", "--for", wrong, check=False).status == USAGE


RULED = """policy = "rr"
[[rule]]
name = "bank"
destination = "198.51.100.1"
use = "lte"
[[rule]]
name = "not-ours"
destination = "198.51.100.2"
use = "none"
[[rule]]
destination = "198.51.100.3"
use = "dsl"
"""


def paused_rules(daemon: Braid) -> list[str]:
    return [each["name"] for each in daemon.json("rule", "list")["rules"] if "paused" in each]


def test_a_rule_is_switched_off_and_on(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(*LINES)
    daemon = start_braid(net, "--config", configured(net, RULED))
    assert shares(net) == {"dsl": 0, "lte": 4}
    daemon.call("rule", "pause", "bank")
    assert shares(net) == {"dsl": 2, "lte": 2}
    status = daemon.call("status").stdout
    assert "# rule bank is paused on the command line, " in status
    assert "# health: good" in status
    explained = daemon.call("explain", net.server(1)).stdout
    assert "rule bank is paused, so it decides nothing" in explained
    daemon.call("rule", "resume", "bank")
    assert shares(net) == {"dsl": 0, "lte": 4}

    # A rule that the kernel's routing applies.
    def outcome() -> str:
        told: str = daemon.json("explain", "198.51.100.2")["answers"][0]["outcome"]
        return told

    assert outcome() == "untouched"
    daemon.call("rule", "pause", "not-ours")
    assert outcome() == "shared"
    kernel = net.host.run(["ip", "rule"]).stdout
    assert "198.51.100.2" not in kernel
    daemon.call("rule", "resume", "not-ours")
    assert "198.51.100.2" in net.host.run(["ip", "rule"]).stdout
    listed = daemon.call("rule", "list").stdout
    assert [line.split()[0] for line in listed.splitlines()] == ["RULE", "bank", "not-ours", "rule-3"]
    unnamed = daemon.call("rule", "pause", "rule-3", check=False)
    assert (unnamed.status, "give the rule a name" in unnamed.stderr) == (FAILED, True)
    assert daemon.call("rule", "pause", "bnak", check=False).status == USAGE
    assert "nothing to do: rule bank is not paused" in daemon.call("rule", "resume", "bank").stderr


def test_the_bond_leaves_a_paused_uplink_at_once(
    make_network: MakeNetwork, start_hub: StartHub, start_braid: StartBraid
) -> None:
    net = make_network(*LINES)
    hub = start_hub(net)
    daemon = start_braid(net)
    daemon.call("join", hub.invite("home"))

    def links() -> set[str]:
        bond = daemon.json("bond")
        return {link["uplink"] for link in bond["links"] if link["state"] == "active"}

    wait_until(lambda: links() == {"dsl", "lte"}, what="two links", timeout=20)
    argv = ["curl", "-sSf", "-o", "/dev/null", "-w", "%{size_download}", f"http://{net.server()}/bytes/20000000"]
    with Process(argv, log=net.scratch / "download", namespace=net.host.name) as download:
        wait_until(lambda: daemon.json("flows")["flows"], what="the download")
        daemon.call("uplink", "pause", "lte")
        assert links() == {"dsl"}
        # The other line is now the only one: the bond is none without it.
        assert daemon.call("uplink", "pause", "dsl", check=False).status == FAILED
        assert download.wait(timeout=60).stdout == "20000000"
    assert daemon.json("bond")["state"] == "up"
    daemon.call("uplink", "resume", "lte")
    wait_until(lambda: links() == {"dsl", "lte"}, what="two links", timeout=20)


def test_a_broken_file_of_pauses_stops_no_daemon(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    file = Path(daemon.state_dir / "pauses.json")
    daemon.call("uplink", "pause", "lte")
    daemon.kill9()
    file.write_text("{")
    daemon.up()
    status = daemon.call("status", check=False)
    assert (status.status, "pauses-not-saved" in status.stdout) == (DEGRADED, True)
    daemon.call("uplink", "pause", "lte")
    assert daemon.call("status").status == 0
