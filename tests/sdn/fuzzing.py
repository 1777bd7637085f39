"""Fuzz targets of the controller: the properties that hold for whatever a switch or a host sends.

`test_fuzzing.py` replays the corpus (`fuzz/corpus-sdn/TARGET/`) in every run, and tries some more inputs. For longer:

    python -m tests.sdn.fuzzing TARGET SECONDS [FOLDER]

tries inputs until the time is over, made by hypothesis and from the files of the corpus and of FOLDER. An input that
breaks a property is written to FOLDER. `make fuzz` runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braid_lab.fabric.shapes import two_paths
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import ForgedError, Kind, Probe, open_frame, seal
from braid_sdn.openflow.messages import (
    AddRule,
    Barrier,
    FlowStatsRequest,
    FromSwitch,
    Hello,
    Match,
    PortStatsRequest,
    Rule,
    RuleCountersRequest,
)
from braid_sdn.openflow.server import MAX_HELLO_BYTES, MAX_PORTS, Connection, Server
from braid_sdn.openflow.turns import Turns
from braid_sdn.openflow.wire import HEADER, MAX_OUTSTANDING, VERSION

from .test_host_balancer import DSL, INSIDE, LTE, Bridge, echo, tcp, udp
from .virtual import KEY, Network, everybody_reaches_everybody, ready

CORPUS = Path(__file__).resolve().parents[2] / "fuzz/corpus-sdn"

#: Longest OpenFlow message: its length has 16 bits.
LONGEST = 65535

DPID = 7


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Fail if a block takes a second of the processor."""
    is_late = False

    def late(*_: object) -> None:
        nonlocal is_late
        is_late = True
        # It may be caught on the way.
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        assert not is_late, "it takes more than a second"


class Wire(asyncio.Transport):
    """A connection that remembers if it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.written = 0

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written += len(data)

    def abort(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002
        return default

    def get_write_buffer_size(self) -> int:
        return 0


class Ear:
    """Takes what the server says about its switches."""

    def __init__(self) -> None:
        self.hellos: list[Hello] = []
        self.messages: list[FromSwitch] = []
        self.codes: list[str] = []

    def connected(self, now: float, hello: Hello) -> None:  # noqa: ARG002
        self.hellos.append(hello)

    def disconnected(self, now: float, dpid: int, why: str) -> None:
        pass

    def message(self, now: float, dpid: int, message: FromSwitch) -> None:  # noqa: ARG002
        assert dpid == DPID
        self.messages.append(message)

    def rejected(self, now: float, address: str, code: str, text: str) -> None:  # noqa: ARG002
        assert text
        self.codes.append(code)


def switch_message(kind: int, body: bytes = b"", xid: int = 1) -> bytes:
    """Return a message of a switch."""
    return HEADER.pack(VERSION, kind, HEADER.size + len(body), xid) + body


def introduction() -> bytes:
    """Return the handshake of a switch without ports."""
    features = DPID.to_bytes(8, "big") + bytes(4) + b"\xfe\x00" + bytes(10)
    return switch_message(0) + switch_message(6, features) + switch_message(19, b"\x00\x0d" + bytes(6), 2)


def openflow(data: bytes) -> None:
    """A switch sends these bytes, cut in pieces: before its introduction if the first is even, else after it.

    Nothing is raised; what is kept is bounded; a stranger is no switch.
    """
    if not data:
        return
    stranger, piece, stream = data[0] % 2 == 0, data[0] // 2 + 1, data[1:]

    async def run() -> None:
        ear = Ear()
        # All is handled at once, however slow this machine is.
        server = Server(ear, turns=Turns(lambda: 0.0))
        connection, wire = Connection(server), Wire()
        connection.connection_made(wire)
        if not stranger:
            connection.data_received(introduction())
            assert [hello.dpid for hello in ear.hellos] == [DPID]
            rule = Rule(0, 1, Match(in_port=1))
            for message in (
                FlowStatsRequest(None),
                PortStatsRequest(),
                FlowStatsRequest(0),
                AddRule(rule),
                Barrier(1),
                RuleCountersRequest(0xB1D0 << 48, 0xFFFF << 48),
            ):
                connection.send(connection.session.encode(message))
        for at in range(0, len(stream), piece):
            if wire.closed:
                break
            connection.data_received(stream[at : at + piece])
            greets = connection._handshake == connection._hello
            assert len(connection._buffer) < (MAX_HELLO_BYTES if greets else LONGEST)
            assert len(connection._ports) <= MAX_PORTS
            assert len(connection.session._parts) <= MAX_OUTSTANDING
        assert len(ear.hellos) <= 1
        connection.connection_lost(None)
        assert not server.connections
        assert not server.handshakes
        assert not server.switches

    with at_once():
        asyncio.run(run())


_PROBES = [Probe(Kind.LINK, PortId(DPID, 3), 0, 1, 10**9), Probe(Kind.PADDED, PortId(DPID, 3), 0, 1, 10**9, 128)]


def lldp(data: bytes) -> None:
    """A host sends this frame: as it is, and as changes to a genuine one. It is refused, or another protocol's."""
    now = 10**9 + 1
    for sent in _PROBES:
        genuine = seal(sent, KEY)
        changed = bytes(a ^ b for a, b in zip(genuine, data.ljust(len(genuine), b"\0"), strict=False))
        for frame in (data, changed, genuine[:14] + data, changed[: len(data)]):
            try:
                probe = open_frame(frame, KEY, now)
            except ForgedError as error:
                assert str(error)
                continue
            # Unsealed parts (addresses, other TLVs, what pads it) may differ.
            assert probe is None or probe == sent


class Hosts:
    """A whole controller, at one of whose hosts the frames arrive."""

    def __init__(self) -> None:
        self.net: Network = ready(two_paths())
        self.links = self._links()

    def _links(self) -> set[Any]:
        return {(link.source, link.target) for link in self.net.controller.topology.links()}

    def __call__(self, data: bytes) -> None:
        """No link comes or goes, no edge is lost, and the edges still reach each other."""
        ends = bytes.fromhex("0180c200000e") + b"\x02\x00\x00\x00\x00\x01"
        for frame in (data, ends + b"\x88\xcc" + data, ends + b"\x88\xb5" + data):
            self.net.send("ha", frame.ljust(60, b"\0"))
        self.net.run(0.05)
        assert self._links() == self.links
        assert set(self.net.controller.tables.pairs) == {("ha", "hb"), ("hb", "ha")}
        everybody_reaches_everybody(self.net)


class HostFlows:
    """The controller of a host's bridge, with a flow of each kind."""

    def __init__(self) -> None:
        self.bridge = Bridge(max_flows=50)
        for frame in (tcp(40000), udp(5000), udp(5000, to=443), echo(8, 77, "192.0.0.8", "198.51.100.1")):
            self.bridge.receive(INSIDE, frame)

    def __call__(self, data: bytes) -> None:
        """The first byte chooses the port of arrival. Nothing is raised, and no packet goes where it came from.

        A frame of the inside is translated or answered; one of an uplink opens no flow and takes none away.
        """
        if not data:
            return
        port = (INSIDE, DSL, LTE)[data[0] % 3]
        with at_once():
            before = set(self.bridge.balancer.table.flows)
            sent = self.bridge.receive(port, data[1:])
            after = set(self.bridge.balancer.table.flows)
        assert before <= after
        assert len(after) <= 50
        if port == INSIDE:
            assert len(after - before) <= 1
        else:
            assert after == before
            assert all(packet.ports == (INSIDE,) for packet in sent)
        self.bridge.packets.clear()


TARGETS: dict[str, Callable[[], Callable[[bytes], None]]] = {
    "host-flows": HostFlows,
    "hosts": Hosts,
    "lldp": lambda: lldp,
    "openflow": lambda: openflow,
}


def corpus(target: str, *folders: Path) -> list[bytes]:
    """Return the inputs of a target's corpus, and of further folders."""
    files = (file for folder in (CORPUS / target, *folders) if folder.is_dir() for file in sorted(folder.iterdir()))
    return [file.read_bytes() for file in files]


def inputs(known: list[bytes]) -> st.SearchStrategy[bytes]:
    """Return a strategy: OpenFlow messages, any bytes, and changed and joined inputs that are known."""
    message = st.builds(
        lambda kind, body, lie, xid: HEADER.pack(VERSION, kind, max(0, 8 + len(body) + lie), xid) + body,
        st.integers(0, 30),
        st.binary(max_size=120),
        st.sampled_from((0, 0, 0, 0, -8, -1, 1, 8, 4000)),
        st.integers(0, 6),
    )
    messages = st.builds(
        lambda first, more: bytes([first]) + b"".join(more), st.integers(0, 255), st.lists(message, max_size=5)
    )
    edit = st.tuples(st.integers(0, 200), st.integers(0, 8), st.binary(max_size=8))

    def edited(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
        for at, drop, put in edits:
            data = data[:at] + put + data[at + drop :]
        return data

    changed = st.builds(edited, st.sampled_from(known), st.lists(edit, min_size=1, max_size=6))
    joined = st.builds(
        lambda one, other, at: one[:at] + other[at:], changed, st.sampled_from(known), st.integers(0, 200)
    )
    return st.one_of(messages, changed, joined, st.binary(max_size=200))


def main(target: str, seconds: float, folder: Path | None) -> int:
    """Try inputs until the time is over; return the exit code."""
    logging.disable(logging.CRITICAL)
    check = TARGETS[target]()
    end, tried = time.process_time() + seconds, 0
    last = b""

    def trial(data: bytes) -> None:
        nonlocal tried, last
        tried, last = tried + 1, data
        check(data)

    def told() -> None:
        print(f"stat::number_of_executed_units: {tried}", file=sys.stderr, flush=True)  # noqa: T201

    def ended(*_: object) -> None:
        told()
        # No exception: the input on trial may catch it.
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, ended)
    code = 0
    while code == 0 and time.process_time() < end:
        strategy = inputs(corpus(target, *([folder] if folder else [])))
        batch = settings(max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        try:
            batch(given(strategy)(trial))()
        except Exception:
            traceback.print_exc()
            code = 1
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"broken-{random.getrandbits(32):08x}").write_bytes(last)
    told()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None))
