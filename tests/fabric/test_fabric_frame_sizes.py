"""Links of different MTU between real bridges of Open vSwitch: what each carries is found and named."""

from __future__ import annotations

from braid_lab.fabric.controller import configuration, controller
from braid_lab.fabric.ovs import OvsNetwork, ovs_network
from braid_lab.fabric.shapes import two_paths
from braid_lab.process import wait_until

SHAPE = two_paths(mbit=1000, delay_ms=0)

#: Both ends of each link, and their MTU.
MTU = {("A-P", "P-A"): 9000, ("P-B", "B-P"): 9000, ("A-Q", "Q-A"): 1500, ("Q-B", "B-Q"): 1400}


def set_mtu(net: OvsNetwork, ends: tuple[str, str], size: int) -> None:
    net.place.ip(*(f"link set {end} mtu {size}" for end in ends))


def test_links_of_different_mtu_are_measured_and_named() -> None:
    with ovs_network(SHAPE, plain=True) as net:
        for ends, size in MTU.items():
            set_mtu(net, ends, size)
        with controller(net.place, net.folder, configuration(SHAPE)) as fabric:

            def sizes() -> dict[str, int | None]:
                links = fabric.api_get("status")["links"]
                return {each["source"].partition(":")[2]: each["frame_bytes"] for each in links}

            def named(code: str) -> set[str]:
                health = fabric.api_get("status")["health"]
                return {each["subject"] for each in health if each["code"] == code}

            wanted = {end: size for ends, size in MTU.items() for end in ends}
            # Frames that come late on a busy machine, as over a slow line, put the largest off by five minutes.
            wait_until(lambda: sizes() == wanted, what="all sizes", timeout=400)
            assert named("small-frames") == {"Q:Q-B → B:B-Q", "B:B-Q → Q:Q-B"}
            uneven = {"A:A-Q → Q:Q-A", "Q:Q-A → A:A-Q"}
            wait_until(lambda: named("uneven-frames") == uneven, what="uneven paths", timeout=30)
            said = fabric.call("status", check=False).stdout
            assert "PACKET bytes" in said
            assert "(small-frames)" in said
            # Mended: a cable that is plugged in again is measured at once.
            net.place.ip("link set Q-B down")
            set_mtu(net, ("Q-B", "B-Q"), 1500)
            net.place.ip("link set Q-B up")
            wait_until(lambda: sizes().get("Q-B") == sizes().get("B-Q") == 1500, what="the new size", timeout=60)
            assert not named("small-frames")
