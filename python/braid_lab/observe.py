"""Observations of a host from outside: its kernel's settings, and its flows as servers see them."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from braid_lab.net.namespace import Namespace
from braid_lab.net.topology import Topology
from braid_lab.product import Braid

#: Time limit of pings, seconds.
PING_TIMEOUT = 10

#: Settings that Braid may touch, and similar ones.
SYSCTLS = r"^net\.(ipv4\.(conf|ip_|ping|fwmark)|ipv6\.(conf|ip6?_))"

#: Values that the kernel itself changes over time.
VOLATILE_SYSCTLS = ("stable_secret", "ip_local_port_range_used")


def kernel_state(place: Namespace) -> dict[str, list[str]]:
    """Return all state that `braid down` promises to restore, as comparable text."""
    # Without "operstate": it changes when a carrier is lost and restored.
    link_words = ("ifname", "flags", "mtu", "qdisc", "link_type", "master", "xdp", "group")
    links = json.loads(place.run(["ip", "-json", "-details", "link"]).stdout)
    settings = place.run(["sysctl", "--all", "--pattern", SYSCTLS]).stdout.splitlines()
    return {
        "rules": _lines(place, "ip -4 rule") + _lines(place, "ip -6 rule"),
        "routes": sorted(_lines(place, "ip -4 route show table all") + _lines(place, "ip -6 route show table all")),
        "addresses": _lines(place, "ip -oneline address"),
        "links": [str({word: link.get(word) for word in link_words}) for link in links],
        "sysctls": [line for line in settings if not any(word in line for word in VOLATILE_SYSCTLS)],
        "qdiscs": _lines(place, "tc qdisc show"),
        "programs": _lines(place, "bpftool net show"),
        "nftables": _lines(place, "nft list ruleset"),
    }


def _lines(place: Namespace, command: str) -> list[str]:
    return [line.rstrip() for line in place.run(command.split()).stdout.splitlines() if line.strip()]


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """Return removed (-) and added (+) lines."""
    found = []
    for subject, lines in before.items():
        was, now = Counter(lines), Counter(after[subject])
        found += [f"{subject}: -{line}" for line in (was - now).elements()]
        found += [f"{subject}: +{line}" for line in (now - was).elements()]
    return found


def ask_tcp(place: Namespace, count: int, *addresses: str) -> list[tuple[str, int]]:
    """Return the address and port that servers see for each of COUNT connections per server."""
    return [(address, port) for address, port in _whoami(place, "tcp", count, addresses)]


def ask_udp(place: Namespace, count: int, *addresses: str) -> list[list[tuple[str, int]]]:
    """Return, for each of COUNT sockets, the address and port that each server sees."""
    return [[(address, port) for address, port in socket] for socket in _whoami(place, "udp", count, addresses)]


def _whoami(place: Namespace, kind: str, count: int, addresses: Sequence[str]) -> list[Any]:
    argv = [sys.executable, "-m", "braid_lab.clients.whoami", kind, str(count), *addresses]
    answer: list[Any] = json.loads(place.run(argv).stdout)
    return answer


def answered_pings(place: Namespace, count: int, interval: float, *words: str) -> list[int]:
    """Return the sequence numbers, from 1 on, of the answers to COUNT pings; one that came twice is there twice.

    The words are further options of ping(8) and the address. Without `-w` it waits for its last answer for an
    interval or two of the round trips it has seen, whatever `-W` says, and a pause of this machine looks like a loss.
    With it, ping goes on until it has COUNT answers, and a lost one is missing among the first COUNT numbers.
    """
    argv = ["ping", "-c", str(count), "-i", f"{interval:g}", "-w", str(PING_TIMEOUT), *words]
    said = place.run(argv, check=False).stdout
    numbers = map(int, re.findall(r"bytes from .* icmp_seq=(\d+) ", said))
    return [number for number in numbers if number <= count]


def by_uplink(net: Topology, seen: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Count flows by the uplink of their address; KeyError for an address of no uplink."""
    names = {
        address: uplink.name for uplink in net.uplinks.values() for address in (uplink.address4, uplink.address6)
    }
    counts = dict.fromkeys(net.uplinks, 0)
    for address, _ in seen:
        counts[names[address]] += 1
    return counts


def states(daemon: Braid) -> dict[str, str]:
    """Return each uplink's state: up, degraded, standby, portal, dead, down or paused."""
    return {each["name"]: each["state"] for each in daemon.json("uplinks")["uplinks"]}


def verdicts(daemon: Braid) -> list[tuple[str, str]]:
    """Return every verdict on an uplink, in order: its name, and up, degraded, portal or dead."""
    changes = [event for event in daemon.json("events")["events"] if event["kind"] == "verdict"]
    return [(event["uplink"], event["text"].partition(":")[0]) for event in changes]
