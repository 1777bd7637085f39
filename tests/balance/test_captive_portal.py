"""A captive portal: the line answers, but with the portal's page."""

from __future__ import annotations

from braid_lab.net.faults import captive
from braid_lab.net.topology import Topology
from braid_lab.observe import ask_udp, by_uplink, states
from braid_lab.process import wait_until
from conftest import StartBraid, configured

#: Time limit: the portal's page is requested less often than pings are sent.
SOON_S = 15.0


def test_a_line_with_a_captive_portal_gets_no_new_flows_until_it_is_gone(
    net: Topology, start_braid: StartBraid
) -> None:
    text = f'policy = "rr"\n[liveness]\nportal = "http://{net.server()}/generate_204"\n'
    daemon = start_braid(net, "--config", configured(net, text))

    def wait_for(state: str) -> None:
        wait_until(lambda: states(daemon)["lte"] == state, what=f"lte to be {state}", timeout=SOON_S)

    def shares() -> dict[str, int]:
        return by_uplink(net, [one for (one,) in ask_udp(net.host, 6, net.server())])

    wait_for("up")
    with captive(net.uplinks["lte"], net.scratch):
        wait_for("portal")
        assert shares() == {"dsl": 6, "lte": 0}
        verdict = [event for event in daemon.json("events")["events"] if event["kind"] == "verdict"][-1]
        assert verdict["uplink"] == "lte"
        assert verdict["evidence"]
    wait_for("up")
    assert shares() == {"dsl": 3, "lte": 3}
    assert states(daemon)["dsl"] == "up"
