"""The testbed of [l3b] §5.1 and its demand: a fixed line that is filled first, and a mobile one for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from braid_lab.experiments.bond.cases import BOND_BYTES, COMPRESSED_UDP_BYTES, DelayWalk, Link

#: §5.1: "All generated UDP packets are 1492 bytes long". Here this is the packet on the line, including the tunnel.
PACKET_BYTES = 1492
FRAME_BYTES = PACKET_BYTES + 14

#: UDP payload of an inner packet that becomes one of those.
PAYLOAD_BYTES = PACKET_BYTES - BOND_BYTES - COMPRESSED_UDP_BYTES

#: §5.1: spare rate of the fixed line, and approximate rate of the mobile one, Mbit/s of such packets.
FIXED_MBIT, MOBILE_MBIT = 64.0, 60.0

#: The paper does not give the shaper's queue.
QUEUE_MS = 20.0

#: §5.2: "increases its rate exponentially every 200ms".
STEP_SECONDS = 0.2

#: Round trips of 13 ms and of 25 to 45 ms. An emulated link counts frames, so its rate is slightly higher.
LINKS = {
    "fixed": Link(FIXED_MBIT * FRAME_BYTES / PACKET_BYTES, 6.5, queue_ms=QUEUE_MS),
    "mobile": Link(MOBILE_MBIT * FRAME_BYTES / PACKET_BYTES, 17.5, delay_walk=DelayWalk(12.5, 22.5)),
}


@dataclass(frozen=True)
class Overflow:
    """Parameters of the paper's algorithm; those that it never varies are the configuration's defaults."""

    k: float
    t_dwd_ms: int
    #: Largest weight of the mobile line: "in order to avoid exceeding the maximum LTE link capacity" (§5.2).
    w_max: int = 45

    @property
    def name(self) -> str:
        """Name in figures."""
        return f"k{self.k:g}_{self.t_dwd_ms}ms"


def configuration(scheduler: str, overflow: Overflow | None = None) -> str:
    """Return the host's configuration.

    The mobile line only carries what the fixed one cannot, and no traffic bypasses the hub.
    """
    tiers = "".join(
        f'[[uplink]]\nname = "{name}"\ndevice = "{name}"\ntier = {tier}\n' for tier, name in enumerate(LINKS, start=1)
    )
    parameters = (
        f'[bond.overflow]\nk = {overflow.k:g}\nt_dwd = "{overflow.t_dwd_ms} ms"\nw_max = {overflow.w_max}\n'
        if overflow
        else ""
    )
    return f'[bond]\nscheduler = "{scheduler}"\nfallback = "block"\n{parameters}{tiers}'


def steps(flows: Sequence[tuple[float, float, float]], seconds: float) -> list[list[float]]:
    """Return the demand of flows (Mbit/s, start, end in s), step by step, for each flow."""
    times = [step * STEP_SECONDS for step in range(round(seconds / STEP_SECONDS))]
    return [[mbit if start <= at < end else 0.0 for at in times] for mbit, start, end in flows]


def ramp(*, scale: float = 1.0) -> list[float]:
    """Return the demand of §5.2 step by step, Mbit/s; `scale` stretches its time.

    "starts with a sending rate of 63 Mb/s, then increases its rate exponentially every 200ms for 15 seconds, until it
    reaches a maximum of 105Mb/s. It holds this constant sending rate for 10 seconds and afterwards decreases the rate
    logarithmically to finally get back to the initial data rate of 63Mb/s after another 15 seconds."
    """
    slope, top = round(scale * 15 / STEP_SECONDS), round(scale * 10 / STEP_SECONDS)
    up = [63.0 * (105 / 63) ** (step / slope) for step in range(slope)]
    return [*up, *[105.0] * top, *reversed(up)]


def per_second(mbit: float) -> float:
    """Return the packets per second of a rate."""
    return mbit * 1e6 / 8 / PACKET_BYTES
