"""wireguard-go between a host and a remote machine: a single-path tunnel for comparison.

It is configured over its own socket, since nothing else here needs `wg`, and works without the kernel's module.
`tools/setup bench` installs it where Go is available.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from braid_lab.net import scratch
from braid_lab.net.namespace import Namespace
from braid_lab.net.remote_host import RemoteHost
from braid_lab.net.topology import Topology
from braid_lab.process import LabError, Process, wait_until
from braid_lab.product import repository

#: Folder of its sockets, whatever the namespace.
SOCKETS = Path("/var/run/wireguard")

#: The far end's own address and port, different from those of a hub beside it.
ENDPOINT, PORT = "203.0.113.10", 51820

#: Inner addresses of host and far end.
HOST_ADDRESS, REMOTE_ADDRESS = "10.66.0.2", "10.66.0.1"

#: As `wg-quick` sets it for links of 1500 bytes.
MTU_BYTES = 1420

#: Address translation at the far end, as the bond's hub has it for its clients.
NAT = (
    "table ip wireguard {\nchain postrouting {\ntype nat hook postrouting priority srcnat\n"
    f"ip saddr {HOST_ADDRESS} masquerade\n}}\n}}\n"
)


def program() -> Path | None:
    """Return the program, None if it is not installed."""
    path = repository() / ".tools" / "bin" / "wireguard"
    return path if path.exists() else None


@dataclass(frozen=True)
class WireGuard:
    """A running tunnel: its device at the host, and the processes of its two ends."""

    device: str
    near: Process
    far: Process


@contextlib.contextmanager
def wireguard(net: Topology, far: RemoteHost, uplink: str, server: str) -> Iterator[WireGuard]:
    """Route the host's packets to `server` through the tunnel, over this uplink; other traffic is unaffected."""
    keys = [X25519PrivateKey.generate() for _ in range(2)]
    path = net.uplinks[uplink]
    net.host.ip(f"route add {ENDPOINT}/32 via {path.gateway4} dev {path.near.device} src {path.address4}")
    # Answers leave from the endpoint's address: wireguard-go would follow them to another one.
    far.namespace.ip(
        f"address add {ENDPOINT}/24 dev eth0",
        f"route add {path.address4}/32 via {far.gateway4} dev eth0 src {ENDPOINT}",
    )
    far.namespace.run(["nft", "-f", "-"], text=NAT)
    near_settings = {"endpoint": f"{ENDPOINT}:{PORT}", "allowed_ip": "0.0.0.0/0"}
    far_settings = {"allowed_ip": f"{HOST_ADDRESS}/32"}
    with contextlib.ExitStack() as stack:
        own = {"private_key": keys[0].private_bytes_raw().hex()}
        peer = {"public_key": keys[1].public_key().public_bytes_raw().hex()}
        near = stack.enter_context(_run_end(net.scratch, net.host, HOST_ADDRESS, own | peer | near_settings))
        own = {"private_key": keys[1].private_bytes_raw().hex(), "listen_port": str(PORT)}
        peer = {"public_key": keys[0].public_key().public_bytes_raw().hex()}
        other = stack.enter_context(_run_end(net.scratch, far.namespace, REMOTE_ADDRESS, own | peer | far_settings))
        far.namespace.sysctl(ipv4__ip_forward=1)
        net.host.ip(f"route add {server}/32 dev {_device(net.host)} src {HOST_ADDRESS}")
        net.host.run(["ping", "-c", "1", "-W", "5", server])
        yield WireGuard(_device(net.host), near, other)


def _device(place: Namespace) -> str:
    """Return the name of an end's device: its socket has that name, and all namespaces share the folder."""
    owner, serial, _ = place.name.removeprefix(scratch.PREFIX).split("-", 2)
    return f"wg{owner}x{serial}"


@contextlib.contextmanager
def _run_end(folder: Path, place: Namespace, address: str, settings: dict[str, str]) -> Iterator[Process]:
    """Run one end with these settings, in their order."""
    words = program()
    if words is None:
        raise LabError("wireguard-go is not installed: run tools/setup bench")
    device = _device(place)
    listening = SOCKETS / f"{device}.sock"
    with Process([words, "-f", device], log=folder / device, namespace=place.name) as process:
        wait_until(lambda: _listens(listening), what=f"{listening} to be served")
        _configure(listening, settings)
        place.ip(f"address add {address}/24 dev {device}", f"link set {device} up mtu {MTU_BYTES}")
        yield process


def _listens(path: Path) -> bool:
    """Return whether a socket is served: it is there a moment before."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        return peer.connect_ex(str(path)) == 0


def _configure(path: Path, settings: dict[str, str]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(5)
        peer.connect(str(path))
        peer.sendall("".join(f"{key}={value}\n" for key, value in {"set": "1", **settings}.items()).encode() + b"\n")
        answer = peer.makefile().readline().strip()
    if answer != "errno=0":
        raise LabError(f"{path.stem}: wireguard-go refused its settings: {answer}")
