"""Uplinks that come back: when they are believed, and what is put on them again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from braid_lab.experiments.balance.dying import Place
from braid_lab.net.links import Line
from braid_lab.net.topology import Uplink, UplinkSpec
from braid_lab.net.trouble import black_hole
from braid_lab.observe import ask_tcp, by_uplink, states
from braid_lab.process import Process, wait_until
from braid_lab.product import Braid
from conftest import BY_TURNS, LINES, MakeNetwork, StartBraid, configured, each_pair_of_place_family_and_trouble

Trouble = Callable[[Uplink], AbstractContextManager[float]]

#: Deaths are found in well under a second, first returns take a second or two.
SOON_S = 6.0

#: Slow enough for a download to be under way while a line dies and is believed again.
SLOW = (
    UplinkSpec("dsl", Line(rate="10Mbit/s", delay="10ms")),
    UplinkSpec("lte", Line(rate="10Mbit/s", delay="10ms")),
)
DOWNLOAD_BYTES = 9_000_000

#: A question over UDP every so many milliseconds.
ASK_MS = 50


def wait_for(daemon: Braid, name: str, *wanted: str, timeout: float = SOON_S) -> None:
    wait_until(lambda: states(daemon)[name] in wanted, what=f"{name} to be {' or '.join(wanted)}", timeout=timeout)


def die_and_return(daemon: Braid, uplink: Uplink, how: Trouble = black_hole, back: str = "up") -> None:
    """Let an uplink die and wait until it is believed again."""
    with how(uplink):
        wait_for(daemon, uplink.name, "dead", "down")
    wait_for(daemon, uplink.name, back)


def shares(place: Place, family: int = 4) -> dict[str, int]:
    return by_uplink(place.net, ask_tcp(place.application, 6, place.net.server(1, family)))


@each_pair_of_place_family_and_trouble
def test_a_line_that_is_back_gets_its_share(place: Place, family: int, how: Trouble, start_braid: StartBraid) -> None:
    daemon = start_braid(place.net, *BY_TURNS)
    lte = place.net.uplinks["lte"]
    with how(lte):
        wait_for(daemon, "lte", "dead", "down")
        assert shares(place, family) == {"dsl": 6, "lte": 0}
    wait_for(daemon, "lte", "up")
    assert shares(place, family) == {"dsl": 3, "lte": 3}


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


def asker(place: Place, family: int) -> Process:
    return place.start("asker", ASK_MS, place.net.server(1, family))


def latest(asking: Process) -> str:
    return asking.stdout().split("\n")[-2:-1][0]


def test_a_udp_socket_moves_with_its_next_packet_and_stays(
    place: Place, family: int, start_braid: StartBraid
) -> None:
    daemon = start_braid(place.net)
    dsl, lte = place.net.uplinks.values()
    with asker(place, family) as asking:
        assert asking.wait_output(r"^(\S+)\n").group(1) == place.address(dsl, family)
        with black_hole(dsl):
            asking.wait_output(f"^{place.address(lte, family)}$")
        wait_for(daemon, "dsl", "up")
        answers = asking.stdout().count("\n")
        wait_until(lambda: asking.stdout().count("\n") > answers + 20, what="more answers")
        assert latest(asking) == place.address(lte, family)


def downloaded(place: Place, family: int, daemon: Braid) -> str | None:
    """Let the line of a running QUIC download die and return; say by which address it came at its end."""
    dsl = place.net.uplinks["dsl"]
    with place.start("download3", place.net.server(1, family), DOWNLOAD_BYTES) as download:
        assert download.wait_output(r"^from (\S+)\n").group(1) == place.address(dsl, family)
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
    place = Place("gateway", make_network(*SLOW, lan_clients=1, serving=("http1", "http3")))
    daemon = start_braid(place.net, "--config", configured(place.net, f'policy = "rr"\nfailback = "{policy}"\n'))
    assert downloaded(place, family, daemon) == place.address(place.net.uplinks[ends_at], family)
    assert set(shares(place).values()) == {3}


def test_idle_flows_move_back_where_that_is_asked_for(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    place = Place("host", make_network(*LINES))
    start_braid(place.net, "--config", configured(place.net, 'failback = "move-idle"\n'))
    dsl, lte = place.net.uplinks.values()
    with asker(place, 4) as asking:
        assert asking.wait_output(r"^(\S+)\n").group(1) == dsl.address4
        with black_hole(dsl):
            asking.wait_output(f"^{lte.address4}$")
        wait_until(lambda: latest(asking) == dsl.address4, what="the socket to be back on its line", timeout=20)


def test_nothing_goes_back_until_it_is_asked_for(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    place = Place("host", make_network(*LINES))
    daemon = start_braid(place.net, "--config", configured(place.net, 'policy = "rr"\nfailback = "never"\n'))
    die_and_return(daemon, place.net.uplinks["lte"], back="standby")
    assert shares(place) == {"dsl": 6, "lte": 0}
    daemon.call("reload")
    wait_for(daemon, "lte", "up")
    assert shares(place) == {"dsl": 3, "lte": 3}


def test_a_line_held_back_takes_over_when_the_other_one_dies(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    place = Place("host", make_network(*LINES))
    daemon = start_braid(place.net, "--config", configured(place.net, 'failback = "never"\n'))
    die_and_return(daemon, place.net.uplinks["lte"], back="standby")
    with black_hole(place.net.uplinks["dsl"]):
        wait_for(daemon, "dsl", "dead")
        assert shares(place) == {"dsl": 0, "lte": 6}
