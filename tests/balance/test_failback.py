"""Uplinks that come back: when they count as up again, and which flows return to them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from braid_lab.experiments.balance.uplink_failure import Location
from braid_lab.net.faults import black_hole
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import Uplink, UplinkSpec
from braid_lab.observe import ask_tcp, by_uplink, states
from braid_lab.process import Process, wait_until
from braid_lab.product import Braid
from conftest import LINES, ROUND_ROBIN, MakeNetwork, StartBraid, configured, each_pair_of_location_family_and_fault

Trouble = Callable[[Uplink], AbstractContextManager[float]]

#: Time limit: failures are detected in well under a second, a first return in a second or two.
SOON_S = 6.0

#: Slow enough that a download lasts while a line fails and is up again.
SLOW = (
    UplinkSpec("dsl", LinkSpec(rate="10Mbit/s", delay="10ms")),
    UplinkSpec("lte", LinkSpec(rate="10Mbit/s", delay="10ms")),
)
DOWNLOAD_BYTES = 9_000_000

#: Interval of UDP queries, ms.
ASK_MS = 50


def wait_for(daemon: Braid, name: str, *wanted: str, timeout: float = SOON_S) -> None:
    wait_until(lambda: states(daemon)[name] in wanted, what=f"{name} to be {' or '.join(wanted)}", timeout=timeout)


def die_and_return(daemon: Braid, uplink: Uplink, how: Trouble = black_hole, back: str = "up") -> None:
    """Let an uplink fail and wait until it is up again."""
    with how(uplink):
        wait_for(daemon, uplink.name, "dead", "down")
    wait_for(daemon, uplink.name, back)


def wait_for_both_families(daemon: Braid, name: str) -> None:
    """Wait until neither family is silent: an uplink is up as soon as one of them answers."""

    def silent() -> bool:
        events = daemon.json("events")["events"]
        said = [each["evidence"] or "" for each in events if each["kind"] == "verdict" and each["uplink"] == name]
        of_families = [evidence for evidence in said if "famil" in evidence]
        return bool(of_families) and "is silent" in of_families[-1]

    wait_until(lambda: not silent(), what=f"both families of {name} to answer", timeout=SOON_S)


def shares(location: Location, family: int = 4) -> dict[str, int]:
    return by_uplink(location.net, ask_tcp(location.application, 6, location.net.server(1, family)))


@each_pair_of_location_family_and_fault
def test_a_line_that_is_back_gets_its_share(
    location: Location, family: int, how: Trouble, start_braid: StartBraid
) -> None:
    daemon = start_braid(location.net, *ROUND_ROBIN)
    lte = location.net.uplinks["lte"]
    with how(lte):
        wait_for(daemon, "lte", "dead", "down")
        assert shares(location, family) == {"dsl": 6, "lte": 0}
    wait_for(daemon, "lte", "up")
    wait_for_both_families(daemon, "lte")
    assert shares(location, family) == {"dsl": 3, "lte": 3}


def test_every_further_death_makes_the_return_slower(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(*LINES)
    daemon = start_braid(net)
    lasted = []
    for _ in range(4):
        with black_hole(net.uplinks["lte"]):
            wait_for(daemon, "lte", "dead")
        silent_no_more = time.monotonic()
        wait_for(daemon, "lte", "up", timeout=30)
        lasted.append(time.monotonic() - silent_no_more)
    assert lasted[0] < SOON_S, lasted
    assert lasted[3] > 2 * lasted[0], lasted


def asker(location: Location, family: int) -> Process:
    return location.start("udp_poller", ASK_MS, location.net.server(1, family))


def latest(asking: Process) -> str:
    return asking.stdout().split("\n")[-2:-1][0]


def test_a_udp_socket_moves_with_its_next_packet_and_stays(
    location: Location, family: int, start_braid: StartBraid
) -> None:
    daemon = start_braid(location.net)
    dsl, lte = location.net.uplinks.values()
    with asker(location, family) as asking:
        assert asking.wait_output(r"^(\S+)\n").group(1) == location.address(dsl, family)
        with black_hole(dsl):
            asking.wait_output(f"^{location.address(lte, family)}$")
        wait_for(daemon, "dsl", "up")
        answers = asking.stdout().count("\n")
        wait_until(lambda: asking.stdout().count("\n") > answers + 20, what="more answers")
        assert latest(asking) == location.address(lte, family)


def downloaded(location: Location, family: int, daemon: Braid) -> str | None:
    """Let the line of a running QUIC download fail and return; return the download's address at its end."""
    dsl = location.net.uplinks["dsl"]
    with location.start("http3_download", location.net.server(1, family), DOWNLOAD_BYTES) as download:
        assert download.wait_output(r"^from (\S+)\n").group(1) == location.address(dsl, family)
        download.wait_output("^flowing")
        die_and_return(daemon, dsl)
        output = download.wait(timeout=60)
    end = json.loads(output.stdout.splitlines()[-1])
    assert (end["bytes"], end["error"]) == (DOWNLOAD_BYTES, None)
    address: str | None = end["via"]
    return address


@pytest.mark.parametrize(
    ("family", "policy", "ends_at"),
    [(4, "new-flows", "lte"), (4, "move-quic", "dsl"), (6, "move-quic", "dsl"), (6, "move-idle", "dsl")],
)
def test_what_a_quic_download_does_when_its_line_is_back(
    make_network: MakeNetwork, family: int, policy: str, ends_at: str, start_braid: StartBraid
) -> None:
    location = Location("gateway", make_network(*SLOW, lan_clients=1, serving=("http1", "http3")))
    daemon = start_braid(
        location.net, "--config", configured(location.net, f'policy = "rr"\nfailback = "{policy}"\n')
    )
    assert downloaded(location, family, daemon) == location.address(location.net.uplinks[ends_at], family)
    assert set(shares(location).values()) == {3}


def test_idle_flows_move_back_where_that_is_asked_for(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    location = Location("host", make_network(*LINES))
    start_braid(location.net, "--config", configured(location.net, 'failback = "move-idle"\n'))
    dsl, lte = location.net.uplinks.values()
    with asker(location, 4) as asking:
        assert asking.wait_output(r"^(\S+)\n").group(1) == dsl.address4
        with black_hole(dsl):
            asking.wait_output(f"^{lte.address4}$")
        wait_until(lambda: latest(asking) == dsl.address4, what="the socket to be back on its line", timeout=20)


def test_nothing_goes_back_until_it_is_asked_for(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    location = Location("host", make_network(*LINES))
    daemon = start_braid(location.net, "--config", configured(location.net, 'policy = "rr"\nfailback = "never"\n'))
    die_and_return(daemon, location.net.uplinks["lte"], back="standby")
    assert shares(location) == {"dsl": 6, "lte": 0}
    daemon.call("reload")
    wait_for(daemon, "lte", "up")
    assert shares(location) == {"dsl": 3, "lte": 3}


def test_a_line_held_back_takes_over_when_the_other_one_dies(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    location = Location("host", make_network(*LINES))
    daemon = start_braid(location.net, "--config", configured(location.net, 'failback = "never"\n'))
    die_and_return(daemon, location.net.uplinks["lte"], back="standby")
    with black_hole(location.net.uplinks["dsl"]):
        wait_for(daemon, "dsl", "dead")
        assert shares(location) == {"dsl": 0, "lte": 6}
