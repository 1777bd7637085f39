"""`braid-sdn`, which is also `braid sdn`: OpenFlow applications. Nouns show, verbs change."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import signal
import socket
import ssl
import sys
import urllib.parse
from collections.abc import Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from braid_sdn.fabric.units import RATE, amount

#: Exit codes, as of `braid` itself.
FAILED, USAGE, UNREACHABLE, DEGRADED = 1, 2, 3, 4

RUN_DIR = Path("/run/braid")
STATE_DIR = Path("/var/lib/braid")


class StopError(Exception):
    """A failed command and its exit code."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        """Keep the exit code."""
        super().__init__(text)
        self.code = code


def main() -> None:
    """Run the command line."""
    options = parser().parse_args()
    try:
        code = options.act(options)
    except StopError as error:
        sys.stderr.write(f"braid sdn: {error}\n")
        raise SystemExit(error.code) from error
    except BrokenPipeError:
        # The reader of our output has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    raise SystemExit(code)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; the manual page is made from it too."""
    top = argparse.ArgumentParser(prog="braid sdn", description=__doc__)
    applications = top.add_subparsers(required=True, metavar="APPLICATION")
    fabric = applications.add_parser("fabric", help="one flow over several paths of a network of switches")
    verbs = fabric.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, text: str, among: Any = verbs, act: Any = None) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = among.add_parser(name, help=text, description=text)
        made.set_defaults(act=act or globals()[f"_{name}"])
        default = os.environ.get("BRAID_RUN_DIR", RUN_DIR)
        made.add_argument("--run-dir", type=Path, default=default, metavar="DIR", help=f"default: {RUN_DIR}")
        return made

    text = "control the switches that connect; SIGHUP reads the configuration anew, and names what of it takes a "
    text += "restart; ends by SIGINT or SIGTERM"
    run = command("run", text)
    run.add_argument("--config", type=Path, metavar="FILE", help="configuration (docs/fabric.md); default: none")
    run.add_argument("--listen", metavar="ADDRESS:PORT", help="address for switches (default: 127.0.0.1:6653)")
    run.add_argument(
        "--log", choices=("text", "json"), default="text", help="form of the log on standard error (default: text)"
    )
    run.add_argument("--http", metavar="ADDRESS:PORT", help="serve the API there too, for edges with a key_file")
    kept = os.environ.get("BRAID_STATE_DIR", STATE_DIR)
    text = f"where policies, the page's tokens and its certificate are kept; default: {STATE_DIR}"
    run.add_argument("--state-dir", type=Path, default=kept, metavar="DIR", help=text)
    for name, text in (
        ("status", "show switches, links, hosts, edges, and problems"),
        ("hosts", "show hosts, their places, since when nothing was heard of them, and their flood limits"),
        ("paths", "show the paths and shares of each pair of edges"),
        ("explain", "show the route of traffic between two hosts or edges, and the reasons"),
        ("events", "show what changed lately, when, and why"),
        ("acl", "show the access control list, and how many packets each entry decided"),
        ("tenants", "show tenants with their ports, hosts and tags"),
        ("policies", "show what was drained, forbidden, pinned, added and set, and whether it is in force"),
    ):
        shown = command(name, text)
        shown.add_argument("--json", action="store_true", help="print JSON as docs/fabric.md describes it")
        if name == "explain":
            shown.add_argument("source", help="a host's MAC or IP address, or an edge's name")
            shown.add_argument("target", help="likewise")
    forget = command("forget", "forget a host, which its next packet teaches again")
    forget.add_argument("host", help="its MAC or IP address")
    text = "have a host stay at a port: known before it speaks, never forgotten"
    add = command("add-host", text, act=_add_host_place)
    add.add_argument("mac", help="its MAC address")
    add.add_argument("switch", help="the switch's name, or its datapath id in hex")
    add.add_argument("port", help="the port's name or number there")
    add.add_argument("addresses", nargs="*", metavar="ADDRESS", help="its IP addresses, which nobody else gets")
    add.add_argument("--vid", help="the VID of its frames, at a trunk of tenants")
    remove = command("remove-host", "have a host that was added age as others do", act=_remove_host_place)
    remove.add_argument("host", help="its MAC or IP address")
    _add_policies(command)
    _add_doctor(command)
    command("svg", "print the network as a drawing with shares, latency and load")
    text = "manage the page for browsers, which [web] listen in the configuration switches on"
    page = verbs.add_parser("web", help=text, description=text).add_subparsers(required=True, metavar="COMMAND")
    token = command("token", "print a token with which a browser logs in to the page", page, _web_token)
    text = "rights of whoever logs in with it: a viewer looks, an operator may also change hosts and policies "
    text += "(default: operator)"
    token.add_argument("--role", choices=("viewer", "operator"), default="operator", help=text)
    text = "replace the token: whoever is logged in with the old one is logged out"
    token.add_argument("--new", action="store_true", help=text)
    token.add_argument("--json", action="store_true", help="print JSON as docs/fabric.md describes it")
    _add_host(applications)
    return top


def _add_doctor(command: Any) -> None:
    doctor = command("doctor", "check this machine's controller and switches, and print a fix for each finding")
    text = "configuration of the controller; default: none, so that it listens at 127.0.0.1:6653"
    doctor.add_argument("--config", type=Path, metavar="FILE", help=text)
    text = "address of Open vSwitch's database, as ovs-vsctl --db has it; default: that of this machine's package"
    doctor.add_argument("--db", metavar="ADDRESS", help=text)
    doctor.add_argument("--json", action="store_true", help="print JSON as docs/fabric.md describes it")


def _add_policies(command: Any) -> None:
    """Add the commands by which an operator sets policies, which outlive the controller."""
    force = "do it also where switches are cut off from one another, or where it cannot be in force yet"
    text = "lead paths around a switch, so that it can be taken down; without loss of packets"
    drain = command("drain", text)
    undrain = command("undrain", "use a drained switch again")
    for each in (drain, undrain):
        each.add_argument("switch", help="its name, or its datapath id in hex")
    text = "use a link no more, in either direction; without loss of packets"
    forbid = command("forbid", text)
    permit = command("permit", "use a forbidden link again")
    for each in (forbid, permit):
        each.add_argument("one", help="a switch, or SWITCH:PORT for one of several links")
        each.add_argument("other", help="the switch, or SWITCH:PORT, at the other end")
    text = "say what a link carries in each direction, in place of the configuration"
    capacity = command("set-capacity", text, act=_set_capacity)
    text = "go by the configuration, or by ports' speed, for a link's capacity again"
    for each in (capacity, command("unset-capacity", text, act=_unset_capacity)):
        each.add_argument("one", help="a switch, or SWITCH:PORT for one of several links")
        each.add_argument("other", help="the switch, or SWITCH:PORT, at the other end")
    capacity.add_argument("rate", metavar="RATE", help='such as "10 Mbit/s"; not less than the link carries')
    for each in (drain, forbid, capacity):
        each.add_argument("--force", action="store_true", help=force)
    pin = command("pin", "lead all packets between two edges, or two hosts without an edge, over one path")
    unpin = command("unpin", "choose the paths of a pinned pair again")
    for each in (pin, unpin):
        each.add_argument("source", help="an edge's name, or a host's MAC or IP address")
        each.add_argument("target", help="likewise")
    pin.add_argument("via", nargs="+", metavar="SWITCH", help="all switches of the path, from the source's on")


def _add_host(applications: Any) -> None:
    text = 'balance a host over its uplinks by Open vSwitch; braid up starts it (kind = "openflow")'
    host = applications.add_parser("host", help=text)
    verbs = host.add_subparsers(required=True, metavar="COMMAND")
    text = "give the flows of a bridge their uplinks, as the daemon of the run directory decides; ends by SIGTERM"
    run = verbs.add_parser("run", help=text, description=text)
    run.set_defaults(act=_host_run)
    default = os.environ.get("BRAID_RUN_DIR", RUN_DIR)
    run.add_argument("--run-dir", type=Path, default=default, metavar="DIR", help=f"default: {RUN_DIR}")
    run.add_argument("--switch", type=Path, required=True, metavar="SOCKET", help="socket for the bridge")
    run.add_argument("--inside", default="braid1", metavar="PORT", help="the port towards the host (default: braid1)")


# The controller.


def _run(options: argparse.Namespace) -> int:
    # Slow to load, and of no use to the other commands.
    from dataclasses import replace

    from braid_sdn.fabric.api.events import Event
    from braid_sdn.fabric.config import Config, ConfigError, read
    from braid_sdn.fabric.service import Service

    listen = _address(options.listen) if options.listen else None

    def configured() -> Config:
        config = read(options.config)
        return config if listen is None else replace(config, host=listen[0], port=listen[1])

    try:
        config = configured()
    except ConfigError as error:
        raise StopError(str(error)) from error
    http = _address(options.http) if options.http else None
    if http and not any(edge.key for edge in config.settings.edges):
        raise StopError(
            "--http serves edges that share a key with the controller: give an [[edge]] a key_file", USAGE
        )

    def log(event: Event) -> None:
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        sys.stderr.write((event.json(when) if options.log == "json" else event.text(when)) + "\n")
        sys.stderr.flush()

    async def serve() -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        service = Service(config, options.state_dir, log)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.reload, configured)
        await service.run(options.run_dir / "fabric.sock", http)

    try:
        asyncio.run(serve())
    except asyncio.CancelledError:
        return 0
    except (OSError, ssl.SSLError) as error:
        raise StopError(str(error)) from error
    return 0


def _host_run(options: argparse.Namespace) -> int:
    from braid_sdn.host.service import AlreadyRunsError, HostService, claim

    async def serve() -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await HostService(options.inside).run(options.run_dir / "openflow.sock", options.switch)

    try:
        with claim(options.run_dir / "openflow.lock"):
            asyncio.run(serve())
    except asyncio.CancelledError:
        return 0
    except (OSError, AlreadyRunsError) as error:
        raise StopError(str(error)) from error
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from braid_sdn.fabric import doctor

    found = doctor.examine(options.config, options.db, options.run_dir / "fabric.sock", _status_or_none(options))
    if options.json:
        told = {"version": 1, "findings": [each.json() for each in found]}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    else:
        for each in found:
            level = each.level if each.level == "ok" else each.level.upper()
            sys.stdout.write(f"{level:4}  {each.text}\n" + (f"      fix: {each.fix}\n" if each.fix else ""))
    levels = {each.level for each in found}
    return FAILED if "fail" in levels else DEGRADED if "warn" in levels else 0


def _status_or_none(options: argparse.Namespace) -> dict[str, Any] | None:
    try:
        told: dict[str, Any] = json.loads(_ask(options, "status"))
    except StopError as error:
        if error.code == UNREACHABLE:
            return None
        raise
    return told


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise StopError(f"{text}: must be an address and a port such as 127.0.0.1:6653", USAGE)
    return host.strip("[]"), int(port)


# The client.


class _Unix(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(10)
        self.sock.connect(str(self._path))


def _ask(options: argparse.Namespace, what: str, *, method: str = "GET", **query: str) -> bytes:
    path = options.run_dir / "fabric.sock"
    target = f"/v1/fabric/{what}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
    connection = _Unix(path)
    try:
        connection.request(method, target)
        answer = connection.getresponse()
        body = answer.read()
    except OSError as error:
        text = f"no controller answers at {path}: {error.strerror} (braid sdn fabric run)"
        raise StopError(text, UNREACHABLE) from error
    finally:
        connection.close()
    if answer.status != 200:
        # A name that nobody knows, or a value that cannot be, is a mistake of whoever runs the command.
        code = USAGE if answer.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND) else FAILED
        raise StopError(json.loads(body)["error"], code)
    return body


def _status(options: argparse.Namespace) -> int:
    return _show(options, _ask(options, "status"), _status_text)


def _hosts(options: argparse.Namespace) -> int:
    return _show(options, _ask(options, "hosts"), _hosts_text)


def _forget(options: argparse.Namespace) -> int:
    told = json.loads(_ask(options, f"hosts/{urllib.parse.quote(options.host, safe='')}/forget", method="POST"))
    sys.stdout.write(f"{told['mac']} at {told['port']} is forgotten\n")
    return 0


def _set_policy(options: argparse.Namespace, *words: str, **query: str) -> int:
    what = "/".join(urllib.parse.quote(word, safe="") for word in words)
    told = json.loads(_ask(options, what, method="POST", **query))
    sys.stdout.write(f"{told['text']}\n")
    return 0


def _forced(options: argparse.Namespace) -> dict[str, str]:
    return {"force": "1"} if options.force else {}


def _drain(options: argparse.Namespace) -> int:
    return _set_policy(options, "switches", options.switch, "drain", **_forced(options))


def _undrain(options: argparse.Namespace) -> int:
    return _set_policy(options, "switches", options.switch, "undrain")


def _forbid(options: argparse.Namespace) -> int:
    return _set_policy(options, "links", options.one, options.other, "forbid", **_forced(options))


def _permit(options: argparse.Namespace) -> int:
    return _set_policy(options, "links", options.one, options.other, "permit")


def _pin(options: argparse.Namespace) -> int:
    return _set_policy(options, "pairs", options.source, options.target, "pin", via=",".join(options.via))


def _unpin(options: argparse.Namespace) -> int:
    return _set_policy(options, "pairs", options.source, options.target, "unpin")


def _add_host_place(options: argparse.Namespace) -> int:
    more = {"addresses": ",".join(options.addresses)} if options.addresses else {}
    more |= {"vid": options.vid} if options.vid else {}
    return _set_policy(options, "hosts", options.mac, "add", switch=options.switch, port=options.port, **more)


def _remove_host_place(options: argparse.Namespace) -> int:
    return _set_policy(options, "hosts", options.host, "remove")


def _set_capacity(options: argparse.Namespace) -> int:
    rate = amount(options.rate, RATE)
    if rate is None:
        text = f'{options.rate}: must be a rate such as "10 Mbit/s" above 0; units are {", ".join(RATE)}'
        raise StopError(text, USAGE)
    words = ("links", options.one, options.other, "set-capacity")
    return _set_policy(options, *words, capacity_bit_s=repr(rate), **_forced(options))


def _unset_capacity(options: argparse.Namespace) -> int:
    return _set_policy(options, "links", options.one, options.other, "unset-capacity")


def _policies(options: argparse.Namespace) -> int:
    return _show(options, _ask(options, "policies"), _policies_text)


def _acl(options: argparse.Namespace) -> int:
    return _show(options, _ask(options, "acl"), _acl_text)


def _acl_text(told: dict[str, Any]) -> str:
    notes = {False: "no known host"}
    rows = [
        [each["number"], each["name"], each["text"], each["packets"], notes.get(each["known"], "")]
        for each in told["entries"]
    ]
    rows.append(["", "", f"{told['default']} all others", told["default_packets"], ""])
    places = [[each["switch"], each["rules"]] for each in told["switches"]]
    tables = [table(["ENTRY", "NAME", "PACKETS THAT IT DECIDES", "PACKETS", "MATCHES"], rows, texts=(1, 2, 4))]
    if places:
        tables.append(table(["SWITCH", "RULES"], places, texts=(0,)))
    return "\n".join(tables)


def _tenants(options: argparse.Namespace) -> int:
    return _show(options, _ask(options, "tenants"), _tenants_text)


def _tenants_text(told: dict[str, Any]) -> str:
    rows = [
        [
            each["name"],
            each["hosts"],
            f"{each['tags_used']} of {each['tags_available']}",
            each["tags"],
            " ".join(each["ports"]) if each["name"] != "default" else "all others",
        ]
        for each in told["tenants"]
    ]
    return table(["TENANT", "HOSTS", "TAGS USED", "TAGS", "PORTS"], rows, texts=(0, 2, 3, 4))


def _policies_text(told: dict[str, Any]) -> str:
    rows = [["drained", each["switch"], "yes" if each["done"] else "no", each["why"]] for each in told["drained"]]
    rows += [["forbidden", " – ".join(each["between"]), "yes", ""] for each in told["forbidden"]]
    rows += [
        [
            "pinned",
            f"{each['source']} – {each['target']}",
            "yes" if each["used"] else "no",
            " → ".join(each["switches"]),
        ]
        for each in told["pinned"]
    ]
    rows += [
        [
            "host",
            each["mac"],
            "yes" if each["used"] else "no",
            " ".join([f"{each['switch']}:{each['port']}", *([f"vid {each['vid']}"] if each["vid"] else [])])
            + "".join(f" {address}" for address in each["addresses"]),
        ]
        for each in told["hosts"]
    ]
    rows += [
        [
            "capacity",
            " – ".join(each["between"]),
            "yes" if each["links"] else "no",
            f"{_number(each['capacity_bit_s'] / 1e6, 1)} Mbit/s",
        ]
        for each in told["capacities"]
    ]
    return table(["POLICY", "OF", "IN FORCE", "DETAILS"], rows, texts=(0, 1, 2, 3))


def _paths(options: argparse.Namespace) -> int:
    return _show(options, _ask(options, "paths"), _paths_text)


def _explain(options: argparse.Namespace) -> int:
    body = _ask(options, "explain", source=options.source, target=options.target)
    return _show(options, body, lambda told: "".join(f"{line}\n" for line in told["steps"]))


def _svg(options: argparse.Namespace) -> int:
    sys.stdout.write(_ask(options, "topology.svg").decode())
    return 0


def _events(options: argparse.Namespace) -> int:
    return _show(options, _ask(options, "events"), _events_text)


def _web_token(options: argparse.Namespace) -> int:
    more = {"new": "1"} if options.new else {}
    return _show(options, _ask(options, "web/token", method="POST", role=options.role, **more), _token_text)


def _token_text(told: dict[str, Any]) -> str:
    where = " or ".join(told["urls"])
    lines = [told["token"]]
    if where:
        lines.append(f"# for {where}")
    else:
        lines.append("# no page yet: write [web] listen in the configuration, then restart the controller")
    if "certificate_sha256" in told:
        lines.append(f"# SHA-256 of its certificate: {told['certificate_sha256']}")
    return "".join(f"{line}\n" for line in lines)


def _show(options: argparse.Namespace, body: bytes, text: Any) -> int:
    told = json.loads(body)
    health = told.get("health", [])
    if options.json:
        sys.stdout.write(body.decode())
    else:
        sys.stdout.write(text(told))
        for each in health:
            sys.stdout.write(f"# health: {each['subject']}: {each['text']} ({each['code']})\n")
    return DEGRADED if health else 0


def _status_text(told: dict[str, Any]) -> str:
    switches = [
        [each["name"], each["id"], each["ports_up"], each["rules"], _number(each["echo_ms"], 2), each["address"]]
        for each in told["switches"]
    ]
    links = [
        [
            each["source"],
            each["target"],
            _number(each["latency_ms"], 2),
            _number(each["used_bit_s"] / 1e6, 1),
            _number(each["capacity_bit_s"] / 1e6, 1),
            _number(each.get("frame_bytes"), 0),
        ]
        for each in told["links"]
    ]
    hosts = [[each["mac"], each["port"], " ".join(each["addresses"])] for each in told["hosts"]]
    lost = [[each["name"], _span(each["lost_ms"]), each["why"]] for each in told["lost_switches"]]
    lost += [
        [f"{each['source']} → {each['target']}", _span(each["lost_ms"]), each["why"]] for each in told["lost_links"]
    ]
    tables = [
        table(["SWITCH", "ID", "PORTS UP", "RULES", "ECHO ms", "ADDRESS"], switches, texts=(0, 1, 5)),
        table(
            ["LINK FROM", "TO", "LATENCY ms", "USED Mbit/s", "CAPACITY Mbit/s", "PACKET bytes"], links, texts=(0, 1)
        ),
        table(["HOST", "PORT", "ADDRESSES"], hosts, texts=(0, 1, 2)),
    ]
    if lost:
        tables.append(table(["LOST", "FOR", "WHY"], lost, texts=(0, 2)))
    return "\n".join([*_cluster_text(told), *tables])


def _cluster_text(told: dict[str, Any]) -> list[str]:
    cluster = told.get("cluster")
    if cluster is None:
        return []
    leader = cluster["leader"]
    if cluster["leads"]:
        return [f"{cluster['name']} leads, generation {cluster['generation']}\n"]
    where = f" (at {leader['address']})" if leader and leader["address"] else ""
    who = f"{leader['name']}{where} leads: ask it for links, hosts and paths" if leader else "nobody leads"
    return [f"{cluster['name']} follows; {who}\n"]


def _span(milliseconds: float) -> str:
    """Return a span of time for people."""
    seconds = milliseconds / 1000
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _events_text(told: dict[str, Any]) -> str:
    lines = []
    for each in told["events"]:
        facts = dict(each["fields"])
        why = facts.pop("why", "")
        when = datetime.fromtimestamp(each["unix_ms"] / 1000, UTC).astimezone().strftime("%m-%d %H:%M:%S")
        words = " ".join(f"{name}={value}" for name, value in facts.items())
        lines.append([when, each["level"], each["event"], words, why])
    return table(["TIME", "LEVEL", "EVENT", "FACTS", "WHY"], lines, texts=(0, 1, 2, 3, 4))


def _hosts_text(told: dict[str, Any]) -> str:
    any_tenant = any(each["tenant"] != "default" for each in told["hosts"])
    any_limit = any(each["flood_limit_wanted_bit_s"] is not None for each in told["hosts"])
    rows = [
        [
            each["mac"],
            each["port"],
            _number(each["silent_ms"] / 1000, 0),
            "never: configured" if each["static"] else f"in {_number(each['forgotten_in_ms'] / 1000, 0)} s",
            " ".join(each["addresses"]),
            *([each["tenant"]] if any_tenant else []),
            *([_flood_limit(each)] if any_limit else []),
        ]
        for each in told["hosts"]
    ]
    further = [*(["TENANT"] if any_tenant else []), *(["FLOODS"] if any_limit else [])]
    head = ["HOST", "PORT", "SILENT s", "FORGOTTEN", "ADDRESSES", *further]
    return table(head, rows, texts=(0, 1, 3, 4, 5, 6))


def _flood_limit(host: dict[str, Any]) -> str:
    """Return what a host's port may have flooded, and what of it is dropped."""
    has, wanted = host["flood_limit_bit_s"], host["flood_limit_wanted_bit_s"]
    if wanted is None:
        return "no limit"
    limit = f"{_number(has / 1e6, 1)} Mbit/s" if has is not None else "not known"
    if has != wanted:
        limit += f" (wanted: {_number(wanted / 1e6, 1)})"
    dropped = host["flood_dropped_packets_s"]
    return f"{limit}, {_number(dropped, 0)} packets/s dropped" if dropped else limit


def _paths_text(told: dict[str, Any]) -> str:
    rows = []
    for pair in told["pairs"]:
        name = f"{pair['source']} → {pair['target']}"
        for path in pair["paths"]:
            rows.append(
                [
                    name,
                    path["tag"],
                    _number(path["latency_ms"], 1),
                    _number(path["capacity_bit_s"] / 1e6, 1),
                    _number(100 * path["share"], 1),
                    " ".join(path["switches"]),
                    f"{pair['order']}: {pair['why']}",
                ]
            )
        for left in pair["left_out"]:
            latency, why = _number(left["latency_ms"], 1), f"left out: {left['why']}"
            rows.append([name, "-", latency, "-", "-", " ".join(left["switches"]), why])
    rows += [[f"{each['source']} → {each['target']}", *"-----", each["why"]] for each in told["unserved"]]
    header = ["PAIR", "TAG", "LATENCY ms", "FREE Mbit/s", "SHARE %", "SWITCHES", "WHY"]
    return table(header, rows, texts=(0, 5, 6))


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, texts: Sequence[int]) -> str:
    """Return an aligned table; columns in `texts` stand to the left, figures to the right."""
    lines = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(header))]
    made = []
    for line in lines:
        cells = [
            cell.ljust(width) if at in texts else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        made.append("  ".join(cells).rstrip() + "\n")
    return "".join(made)


if __name__ == "__main__":
    main()
