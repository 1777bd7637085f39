"""Idle timeouts of mappings, without waiting for them.

The kernel stamps flows with its monotonic clock, and the daemon's sweep of idle flows uses the same one. A daemon
started in a time namespace sees that clock any number of seconds ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from braid_lab.experiments.balance.nat.cases import BOTH, Verdict
from braid_lab.experiments.balance.nat.testbed import NatTestbed
from braid_lab.packets.codec import Flag, Packet, echo
from braid_lab.process import run, wait_until
from braid_lab.product import binary

#: Real seconds between a flow's last packet and the sweep, on top of the shift.
SLACK_S = 14
#: The sentinel: an answered query expires sooner than anything that is kept on purpose.
DNS = 53
#: Longer than every idle timeout.
FOREVER_S = 8000

#: Protocol, and the client's address and port of a flow, as in `braid flows`.
Known = tuple[str, str]


@dataclass(frozen=True)
class Idle:
    """A kind of mapping, how to create one, and how long it must be kept."""

    name: str
    source: str
    seconds: int
    open: Callable[[NatTestbed, int], Known]
    deviation: str = ""


def _udp(bench: NatTestbed, family: int) -> Known:
    mapping = bench.open_udp(family)
    return "udp", inner(mapping.inside, mapping.inside_port)


def _udp_unanswered(bench: NatTestbed, family: int) -> Known:
    mapping = bench.send_udp(family)
    return "udp", inner(mapping.inside, mapping.inside_port)


def _echo(bench: NatTestbed, family: int) -> Known:
    ident = bench.port()
    bench.out(Packet(bench.client(family), bench.remote(family), echo(family, ident)))
    return "icmp" if family == 4 else "icmpv6", inner(bench.client(family), ident)


def _tcp(bench: NatTestbed, family: int) -> Known:
    mapping = bench.open_tcp(family)
    return "tcp", inner(mapping.inside, mapping.inside_port)


def _tcp_opening(bench: NatTestbed, family: int) -> Known:
    mapping = bench.send_syn(family)
    return "tcp", inner(mapping.inside, mapping.inside_port)


def _tcp_closing(bench: NatTestbed, family: int) -> Known:
    mapping = bench.open_tcp(family)
    bench.back(mapping.uplink, mapping.reply(Flag.FIN | Flag.ACK))
    bench.out(mapping.segment(Flag.FIN | Flag.ACK))
    return "tcp", inner(mapping.inside, mapping.inside_port)


def _tcp_reset(bench: NatTestbed, family: int) -> Known:
    mapping = bench.open_tcp(family)
    bench.back(mapping.uplink, mapping.reply(Flag.RST))
    return "tcp", inner(mapping.inside, mapping.inside_port)


TIMES = (
    Idle("idle_echo_is_kept_1_min", "RFC 5508 REQ-2", 60, _echo),
    Idle("idle_udp_unanswered_is_kept_2_min", "RFC 4787 REQ-5", 120, _udp_unanswered),
    Idle("idle_udp_is_kept_2_min", "RFC 4787 REQ-5", 120, _udp),
    Idle("idle_tcp_reset_is_kept_4_min", "RFC 7857 §2", 240, _tcp_reset),
    Idle(
        "idle_tcp_opening_is_kept_4_min",
        "RFC 5382 REQ-5",
        240,
        _tcp_opening,
        "75 s: above the longest pause between Linux' SYNs; floods fill tables by it",
    ),
    Idle(
        "idle_tcp_closing_is_kept_4_min",
        "RFC 5382 REQ-5",
        240,
        _tcp_closing,
        "60 s: after Linux' own TIME_WAIT neither end knows the connection",
    ),
    Idle("idle_tcp_is_kept_2_h_4_min", "RFC 5382 REQ-5", 7440, _tcp),
)


def inner(address: str, port: int) -> str:
    """Return an endpoint as `braid flows` writes it."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def survey(bench: NatTestbed, times: Sequence[Idle]) -> list[Verdict]:
    """Leave each kind of mapping idle for as long as it must be kept, then all for longer than any may be."""
    verdicts = []
    for seconds in sorted({each.seconds for each in times}):
        kinds = [(each, family) for each in times if each.seconds == seconds for family in BOTH]
        opened = [(each, family, each.open(bench, family)) for each, family in kinds]
        left = _swept(bench, seconds - SLACK_S)
        verdicts += [
            Verdict(
                f"{each.name}_v{family}", each.source, each.deviation, "" if known in left else f"{known} is gone"
            )
            for each, family, known in opened
        ]
    left = _swept(bench, FOREVER_S)
    missed = f"still there: {sorted(left)[:5]}" if left else ""
    return [*verdicts, Verdict("idle_flows_are_removed", "RFC 4787 REQ-5, RFC 5382 REQ-5", "", missed)]


def _swept(bench: NatTestbed, ahead: int) -> set[Known]:
    """Restart the daemon with its clock ahead; return the flows left by its first sweep."""
    sentinel = bench.open_udp(4, remote_port=DNS)
    known = ("udp", inner(sentinel.inside, sentinel.inside_port))
    bench.daemon.kill9()
    shifted = ["unshare", "--time", "--fork", f"--monotonic={ahead}", f"--boottime={ahead}", "--"]
    words = [str(binary()), "--run-dir", str(bench.daemon.run_dir), "up", *bench.options]
    run([*shifted, *words], namespace=bench.host.name)
    wait_until(lambda: known not in _flows(bench), what="the first sweep", timeout=SLACK_S, poll=0.1)
    return _flows(bench)


def _flows(bench: NatTestbed) -> set[Known]:
    return {(each["protocol"], each["inner"]) for each in bench.daemon.json("flows")["flows"]}
