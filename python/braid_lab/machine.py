"""What a measurement was taken on, and whether the machine was ours alone while it was."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CpuTicks:
    """Clock ticks of the whole machine since boot, from the first line of /proc/stat."""

    total: int
    idle: int
    steal: int

    @staticmethod
    def now() -> CpuTicks:
        """Read the counters."""
        return CpuTicks.parse(Path("/proc/stat").read_text())

    @staticmethod
    def parse(stat: str) -> CpuTicks:
        """Return the counters of /proc/stat's text, proc(5)."""
        fields = [int(word) for word in stat.splitlines()[0].split()[1:]]
        # user nice system idle iowait irq softirq steal; the guest columns are already within user and nice.
        return CpuTicks(total=sum(fields[:8]), idle=fields[3] + fields[4], steal=fields[7])

    @property
    def steal_share(self) -> float:
        """The share of the time that the hypervisor gave to other guests."""
        return self.steal / max(1, self.total)

    def since(self, before: CpuTicks) -> CpuTicks:
        """Return the difference to an earlier reading."""
        return CpuTicks(self.total - before.total, self.idle - before.idle, self.steal - before.steal)


def _first(path: str, pattern: str) -> str:
    match = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return match.group(1).strip() if match else "unknown"


def describe(before: CpuTicks) -> dict[str, Any]:
    """Return the facts that a reader needs to judge a figure; `before` was read when the run began."""
    during = CpuTicks.now().since(before)
    return {
        "cpu": _first("/proc/cpuinfo", r"^model name\s*:\s*(.*)$"),
        "cores": os.cpu_count(),
        "memory_bytes": int(_first("/proc/meminfo", r"^MemTotal:\s*(\d+)")) * 1024,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "ticks": asdict(during),
        # Figures taken under much of it are not ours.
        "steal_share": during.steal_share,
    }
