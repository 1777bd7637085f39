"""Judges what was found out about this machine: nothing is asked or changed here."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from braid_sdn.fabric.doctor.open_vswitch import Bridge, Connection


class Level(StrEnum):
    """The gravity of a finding."""

    OK = "ok"
    #: Something may not work as expected.
    WARN = "warn"
    #: A controller cannot run, or a switch cannot be controlled.
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One finding."""

    #: Stable, for programs.
    code: str
    level: Level
    text: str
    #: The command, or else the step, that mends it; empty if there is nothing to do.
    fix: str = ""

    def json(self) -> dict[str, Any]:
        """Return it as docs/fabric.md describes it."""
        return asdict(self)


def of_controller(status: dict[str, Any] | None, address: str, socket: str, refused: str) -> Iterator[Finding]:
    """Yield what there is to say of the controller: its status or None, and why its port cannot be had, or ""."""
    if status is None:
        if refused:
            text = f"no controller answers at {socket}, and switches cannot be heard at {address}: {refused}"
            port = address.rpartition(":")[2]
            yield Finding("port", Level.FAIL, text, f"ss -ltnp 'sport = :{port}' names what has the port")
        else:
            text = f"no controller runs here; one can: {address} is free"
            yield Finding("controller", Level.OK, text)
        return
    count = len(status["switches"])
    yield Finding("controller", Level.OK, f"a controller answers at {socket}; {count} switches are connected to it")
    for each in status["health"]:
        yield Finding(each["code"], Level.WARN, f"{each['subject']}: {each['text']}")


def of_bridges(
    bridges: Sequence[Bridge], port: int, *, cluster: bool, served: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield what is wrong with the bridges of this machine whose controller listens at a port.

    `served` are the datapath ids that the controller of this machine names: Open vSwitch itself notes only every 5 s
    whether it is connected.
    """
    bridges = [_without_listeners(each) for each in bridges]
    ours = [each for each in bridges if _controllers(each, port)]
    others = [each.name for each in bridges if each not in ours]
    if others:
        text = f"not looked at, since they are told of no controller at port {port}: bridge {', '.join(others)}"
        fix = f"if one is to join: ovs-vsctl set-controller BRIDGE tcp:127.0.0.1:{port}"
        yield Finding("other-bridges", Level.OK, text, fix)
    # Zeros stand before the bridge is there.
    ids = Counter(each.datapath_id for each in bridges if each.datapath_id.strip("0"))
    for each in ours:
        local = [replace(one, connected=True) if _is_local(one.target) else one for one in each.controllers]
        bridge = replace(each, controllers=tuple(local)) if each.datapath_id in served else each
        found = list(_of_bridge(bridge, _controllers(bridge, port), cluster=cluster))
        if ids[bridge.datapath_id] > 1:
            text = f"{bridge.name}: another bridge has its datapath id {bridge.datapath_id}, and one alone is served"
            fix = f"ovs-vsctl set bridge {bridge.name} other-config:datapath-id=SIXTEEN_OTHER_DIGITS"
            found.append(Finding("duplicate-id", Level.FAIL, text, fix))
        if found:
            yield from found
        else:
            yield Finding("bridge", Level.OK, f"{bridge.name}: connected, and configured as it should be")


def _without_listeners(bridge: Bridge) -> Bridge:
    """Return it without targets at which it listens for programs such as `ovs-ofctl`: nobody controls it by them.

    Mininet gives one, such as `ptcp:6654`, to each of its switches.
    """
    called = tuple(each for each in bridge.controllers if not each.target.startswith(("ptcp:", "pssl:", "punix:")))
    return replace(bridge, controllers=called)


def _controllers(bridge: Bridge, port: int) -> tuple[Connection, ...]:
    return tuple(each for each in bridge.controllers if _parts(each.target)[1] == port)


def _parts(target: str) -> tuple[str, int]:
    """Return host and port of a target such as `tcp:[::1]:6653`; OpenFlow's port stands for none."""
    host = target.partition(":")[2]
    if host.startswith("["):
        host, _, rest = host[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = host.partition(":")
    return host, int(port) if port.isdecimal() else 6653


def _of_bridge(bridge: Bridge, connections: tuple[Connection, ...], *, cluster: bool) -> Iterator[Finding]:
    name = bridge.name
    if bridge.protocols and "OpenFlow13" not in bridge.protocols:
        text = f"{name}: does not speak OpenFlow 1.3, only {', '.join(sorted(bridge.protocols))}"
        yield Finding("openflow-version", Level.FAIL, text, f"ovs-vsctl set bridge {name} protocols=OpenFlow13")
    for each in connections:
        if not each.connected:
            why = f": {each.error}" if each.error else ""
            text = f"{name}: is not connected to {each.target}{why}"
            yield Finding("not-connected", Level.WARN, text, "see that the controller runs and is reached from here")
        if each.in_band and not _is_local(each.target):
            text = f"{name}: Open vSwitch's hidden rules for {each.target} pass frames beside those of the fabric"
            fix = f"ovs-vsctl set bridge {name} other-config:disable-in-band=true"
            yield Finding("in-band", Level.WARN, text, fix)
    if len(bridge.controllers) > 1 and not cluster:
        text = f"{name}: has {len(bridge.controllers)} controllers, which undo each other's rules"
        fix = f"ovs-vsctl set-controller {name} {connections[0].target}, or have them share [cluster]"
        yield Finding("controllers", Level.WARN, text, fix)
    if not bridge.secure:
        text = f"{name}: forgets its rules and floods, in loops too, some 15 s after it lost its controller"
        yield Finding("fail-mode", Level.WARN, text, f"ovs-vsctl set-fail-mode {name} secure")
    for option in bridge.spanning_tree:
        text = f"{name}: a spanning tree protocol blocks ports, which the fabric would use"
        yield Finding("spanning-tree", Level.WARN, text, f"ovs-vsctl set bridge {name} {option}=false")
    for device, error in sorted(bridge.errors.items()):
        yield Finding("port-error", Level.FAIL, f"{name}: port {device} does not work: {error}")
    yield from _of_mtu(bridge)


def _of_mtu(bridge: Bridge) -> Iterator[Finding]:
    sizes = Counter(bridge.mtu.values())
    if len(sizes) < 2:
        return
    largest = max(sizes)
    small = sorted(device for device, size in bridge.mtu.items() if size < largest)
    told = ", ".join(f"{device} {bridge.mtu[device]}" for device in small[:8]) + (", …" if len(small) > 8 else "")
    text = f"{bridge.name}: packets of up to {largest} bytes that come by one port are lost at others: {told}"
    yield Finding("mtu", Level.WARN, text, f"ip link set dev {small[0]} mtu {largest}, or a smaller one at its hosts")


def _is_local(target: str) -> bool:
    host, _ = _parts(target)
    if not target.startswith(("tcp:", "ssl:")):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
