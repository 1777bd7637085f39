"""The testbed's two lines under UDP flows of a known demand through the bond: bytes carried and drops."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from braid_lab.clients.paced_udp import BIN_SECONDS
from braid_lab.concurrency import repeated
from braid_lab.experiment import Run
from braid_lab.experiments.bond import testbed
from braid_lab.experiments.bond.site import BOND_DEVICE, Site
from braid_lab.process import LabError, Process

#: Interval at which the lines' counters are read.
SAMPLE_INTERVAL_SECONDS = 0.1

#: Packets in transit arrive within the longest queue, s.
DRAIN_SECONDS = 1.0

#: A measurement is void if senders managed less than this share of their demand.
MIN_KEPT_SHARE = 0.97

Row = dict[str, float]


@dataclass(frozen=True)
class LinkSample:
    """Bytes of frames that the lines had delivered upstream by some time, and packets dropped at full queues."""

    at: float
    bytes: dict[str, int]
    dropped: int


@dataclass(frozen=True)
class Outcome:
    """Result of one demand."""

    #: After the bond's retransmissions and the drops of full lines; the paper has no retransmissions.
    loss: float
    line_loss: float
    in_order: float
    #: Share of the demand that was sent.
    kept: float
    rows: list[Row]

    @property
    def fixed_utilisation(self) -> float:
        """The fixed line's utilisation while demand was above its rate."""
        above = [row["fixed_mbit"] for row in self.rows if row["demand_mbit"] >= testbed.FIXED_MBIT]
        return sum(above) / max(1, len(above)) / testbed.FIXED_MBIT


def send(run: Run, place: Site, flows: Sequence[Sequence[float]]) -> Outcome:
    """Send flows of this demand, Mbit/s step by step, from the host."""
    module = [sys.executable, "-m", "braid_lab.clients.paced_udp"]
    folder = place.daemon.run_dir.parent
    with contextlib.ExitStack() as stack:
        receive = [*module, "receive", place.server]
        log = place.net.scratch / "paced"
        receiver = stack.enter_context(Process(receive, log=log, namespace=place.net.internet.name))
        receiver.wait_output("^ready$")
        before = dropped(place)
        with sampled_links(place) as samples:
            senders = []
            for number, demand in enumerate(flows):
                file = folder / f"demand-{number}"
                file.write_text("".join(f"{testbed.per_second(mbit):.3f}\n" for mbit in demand))
                words = ["send", place.server, str(testbed.PAYLOAD_BYTES), f"{testbed.STEP_SECONDS:g}", str(file)]
                log = place.net.scratch / f"paced-{number}"
                senders.append(
                    stack.enter_context(Process([*module, *words], log=log, namespace=place.net.host.name))
                )
            longest = max(len(demand) for demand in flows) * testbed.STEP_SECONDS
            said = [json.loads(each.wait(timeout=2 * longest + 30).stdout) for each in senders]
            time.sleep(DRAIN_SECONDS)
        found = json.loads(receiver.stop().stdout.splitlines()[-1])
    if found["sources"] != [place.hub.far.address4]:
        raise LabError(f"not through the hub, but seen as {', '.join(found['sources']) or 'nobody'}")
    total = [sum(step) for step in itertools.zip_longest(*flows, fillvalue=0.0)]
    sent = sum(each["sent"] for each in said)
    kept = sent / sum(testbed.per_second(mbit) * testbed.STEP_SECONDS for mbit in total)
    if kept < MIN_KEPT_SHARE:
        run.too_slow(f"the senders kept {kept:.3f} of their demand")
    return Outcome(
        loss=1 - found["packets"] / sent,
        line_loss=(dropped(place) - before) / sent,
        in_order=sum(found["in_order"]) / found["packets"],
        kept=kept,
        rows=_rows(samples, min(each["began"] for each in said), total, found),
    )


def drop_report(place: Site) -> str:
    """Return where packets were dropped, as counted by the bond and the lines."""
    packets = place.bond()["packets"]
    own = f"the bond dropped {packets['dropped']} and had no room for {packets['overflowed']}"
    unread = f"{place.net.host.counters(BOND_DEVICE)['tx']['dropped']} were never read from its device"
    return f"{own}; {unread}; full lines dropped {dropped(place)}; {packets['retransmitted']} sent again"


def dropped(place: Site) -> int:
    """Return how many upstream packets were dropped at full queues."""
    return _dropped(_stats(place))


def _dropped(stats: dict[str, Any]) -> int:
    return sum(each["up"]["packets"]["queue_full"]["packets"] for each in stats.values())


def _stats(place: Site) -> dict[str, Any]:
    return {name: place.emulator(name).request({"stats": {}})["stats"] for name in place.net.uplinks}


@contextlib.contextmanager
def sampled_links(place: Site) -> Iterator[list[LinkSample]]:
    """Sample the lines' counters for the length of a block; the yielded list grows."""
    samples: list[LinkSample] = []

    def sample() -> None:
        stats = _stats(place)
        carried = {name: each["up"]["packets"]["delivered"]["bytes"] for name, each in stats.items()}
        samples.append(LinkSample(time.monotonic(), carried, _dropped(stats)))

    with repeated(sample, SAMPLE_INTERVAL_SECONDS):
        yield samples


def _rows(
    samples: Sequence[LinkSample], began: float, demand: Sequence[float], found: dict[str, list[int]]
) -> list[Row]:
    """Return demand, each line's delivered rate of the paper's packets, drops, and the in-order rate, by sample."""
    scale = 8e-6 * testbed.PACKET_BYTES / testbed.FRAME_BYTES
    rows = []
    for earlier, later in itertools.pairwise(samples):
        at = (earlier.at + later.at) / 2 - began
        step = int(at / testbed.STEP_SECONDS)
        if at < 0 or step >= len(demand):
            continue
        here = min(int(at / BIN_SECONDS), len(found["in_order"]) - 1)
        span = later.at - earlier.at
        lines = {f"{name}_mbit": scale * (later.bytes[name] - earlier.bytes[name]) / span for name in later.bytes}
        in_order = 8e-6 * testbed.PACKET_BYTES * found["in_order"][here] / BIN_SECONDS
        rows.append(
            {"s": round(at, 3), "demand_mbit": demand[step], **lines, "in_order_mbit": in_order}
            | {"dropped": later.dropped - earlier.dropped}
        )
    return rows
