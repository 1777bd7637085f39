"""Servers of web sites in the lab's internet: nginx for HTTP/1.1 and HTTP/2, Caddy for HTTP/3, and their names.

Debian's nginx speaks no HTTP/3, and Debian's Caddy, a program of Go, cannot be made to listen for MPTCP. Every host
has a certificate of its own, so no browser takes one connection for two of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from braid_lab.net.topology import Topology
from braid_lab.pages import corpus, files
from braid_lab.pages.corpus import Site
from braid_lab.process import LabError, Process, wait_until
from braid_lab.product import unpacked
from braid_lab.servers import catalog, nginx
from braid_lab.servers.certificate import Certificate

PORT = 443

#: As browsers call them. HTTP/1.1 and HTTP/2 have one server; which of the two is spoken is up to the client.
PROTOCOLS = ("http/1.1", "h2", "h3")

#: Headers of every answer: nothing is kept, and scripts of all sites may read it and its times.
HEADERS = {"Cache-Control": "no-store", "Access-Control-Allow-Origin": "*", "Timing-Allow-Origin": "*"}

#: Runs a command with a resolv.conf of its own, which no other process sees.
RESOLVE = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'

#: Opens MPTCP sockets where a program asks for TCP (Debian's mptcpize).
MPTCPIZE = ["mptcpize", "run"]


@dataclass(frozen=True)
class Served:
    """Sites that are being served."""

    sites: tuple[Site, ...]
    #: The sites as JSON, the authority's certificate, and the fingerprint of the servers' key.
    corpus: Path
    trust: Path
    fingerprint: str
    #: Their files: ROOT/HOST/PATH.
    root: Path
    hosts: tuple[str, ...]
    resolv_conf: Path

    def resolving(self, argv: Sequence[str | Path]) -> list[str]:
        """Return a command that resolves names in the lab."""
        start = ["unshare", "--mount", "sh", "-c", RESOLVE, "sh", str(self.resolv_conf)]
        return [*start, *map(str, argv)]


@contextlib.contextmanager
def served(
    net: Topology,
    sites: Sequence[Site],
    protocol: str,
    *,
    mptcp: bool = False,
    others: Mapping[str, Path] | None = None,
) -> Iterator[Served]:
    """Serve sites at all IPv4 addresses of a network's internet, over one of PROTOCOLS.

    With `mptcp`, connections over TCP are MPTCP if the client wants it. `others` are further hosts, with their files.
    """
    program = caddy() if protocol == "h3" else nginx.program()
    if not program.exists():
        raise LabError(f"{program} does not exist: run tools/setup all")
    folder = net.scratch / f"sites-{net.internet.name.rpartition('-')[0]}"
    certificates = folder / "certificates"
    certificates.mkdir(parents=True)
    root = _root(net.scratch, sites, others or {})
    hosts = {*(host for site in sites for host in site.hosts), *(others or {})}
    authority = Certificate.authority()
    trust = folder / "authority.pem"
    trust.write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    key = ec.generate_private_key(ec.SECP256R1())
    for host in hosts:
        authority.issue(host, key).write(certificates / f"{host}.pem")
    corpus.write(sites, folder / "corpus.json")
    (folder / "resolv.conf").write_text(f"nameserver {net.server(1)}\n")
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        if protocol == "h3":
            stack.enter_context(_caddy(net, folder, root))
        else:
            stack.enter_context(_nginx(net, folder, root, mptcp=mptcp))
        dns = Process(catalog.argv("dns", net.servers(4)), log=folder / "dns", namespace=net.internet.name)
        stack.callback(dns.stop)
        dns.wait_output(catalog.READY, timeout=60)
        fingerprint = Certificate(authority.certificate, key).fingerprint()
        yield Served(
            tuple(sites),
            folder / "corpus.json",
            trust,
            fingerprint,
            root,
            tuple(sorted(hosts)),
            folder / "resolv.conf",
        )


def _root(scratch: Path, sites: Sequence[Site], others: Mapping[str, Path]) -> Path:
    """Write the files of sites once for all networks of this process; return their folder."""
    root = scratch / f"files-{hashlib.sha256(repr((sites, others)).encode()).hexdigest()[:16]}"
    if not root.exists():
        new = root.with_suffix(".new")
        for site in sites:
            files.write(site, new)
        for host, folder in others.items():
            new.mkdir(exist_ok=True)
            (new / host).symlink_to(folder)
        new.rename(root)
    return root


def caddy() -> Path:
    """Return where tools/setup unpacks Caddy."""
    return unpacked("caddy", "usr/bin/caddy")


@contextlib.contextmanager
def _nginx(net: Topology, folder: Path, root: Path, *, mptcp: bool) -> Iterator[None]:
    headers = "".join(f'add_header {name} "{value}";\n' for name, value in HEADERS.items())
    listen = "".join(f"listen {address}:{PORT} ssl http2;\n" for address in net.servers(4))
    certificate = f"{folder}/certificates/$ssl_server_name.pem"
    http = (
        "types {\ntext/html html;\ntext/css css;\ntext/javascript js;\nimage/png png;\n}\n"
        "default_type application/octet-stream;\nsendfile on;\ntcp_nopush on;\nhttp2_max_concurrent_streams 256;\n"
        f"server {{\n{listen}root {root}/$host;\n{headers}ssl_protocols TLSv1.2 TLSv1.3;\n"
        f"ssl_certificate {certificate};\nssl_certificate_key {certificate};\n}}\n"
    )
    argv: list[str | Path] = [*(MPTCPIZE if mptcp else []), *nginx.command(folder, http)]
    with Process(argv, log=folder / "nginx", namespace=net.internet.name) as process:
        _wait_listening(net, process, udp=False)
        yield


@contextlib.contextmanager
def _caddy(net: Topology, folder: Path, root: Path) -> Iterator[None]:
    server = {
        "listen": [f"{address}:{PORT}" for address in net.servers(4)],
        "protocols": ["h3"],
        "automatic_https": {"disable": True},
        "tls_connection_policies": [{}],
        "routes": [
            {
                "handle": [
                    {"handler": "headers", "response": {"set": {name: [value] for name, value in HEADERS.items()}}},
                    {"handler": "file_server", "root": f"{root}/{{http.request.host}}"},
                ]
            }
        ],
    }
    configuration = {
        "admin": {"disabled": True, "config": {"persist": False}},
        "storage": {"module": "file_system", "root": str(folder / "caddy-storage")},
        "logging": {"logs": {"default": {"level": "ERROR"}}},
        "apps": {
            "tls": {"certificates": {"load_folders": [str(folder / "certificates")]}},
            "http": {"servers": {"sites": server}},
        },
    }
    file = folder / "caddy.json"
    file.write_text(json.dumps(configuration, indent=1))
    argv: list[str | Path] = [caddy(), "run", "--config", file]
    with Process(argv, log=folder / "caddy", namespace=net.internet.name) as process:
        _wait_listening(net, process, udp=True)
        yield


def _wait_listening(net: Topology, process: Process, *, udp: bool) -> None:
    """Wait until a server has the port at the last address."""

    def listens() -> bool:
        if not process.running:
            raise LabError(f"{' '.join(process.argv)}: ended early\n{process.stderr()}")
        return net.internet.listens(net.servers(4)[-1], PORT, udp=udp)

    wait_until(listens, what=f"{process.argv[0]} to listen", timeout=30, poll=0.05)
