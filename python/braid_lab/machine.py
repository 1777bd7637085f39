"""The machine of a measurement, and the share of it that other guests took."""

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
        """Parse the text of /proc/stat, proc(5)."""
        fields = [int(word) for word in stat.splitlines()[0].split()[1:]]
        # user nice system idle iowait irq softirq steal; user and nice include the guest columns.
        return CpuTicks(total=sum(fields[:8]), idle=fields[3] + fields[4], steal=fields[7])

    @property
    def steal_share(self) -> float:
        """Share of the time that the hypervisor gave to other guests."""
        return self.steal / max(1, self.total)

    def since(self, before: CpuTicks) -> CpuTicks:
        """Return the difference from an earlier reading."""
        return CpuTicks(self.total - before.total, self.idle - before.idle, self.steal - before.steal)


def _first(path: str, pattern: str) -> str:
    match = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return match.group(1).strip() if match else "unknown"


def describe(before: CpuTicks) -> dict[str, Any]:
    """Return the facts needed to judge a figure; `before` was read when the run began."""
    during = CpuTicks.now().since(before)
    return {
        "cpu": _first("/proc/cpuinfo", r"^model name\s*:\s*(.*)$"),
        "cores": os.cpu_count(),
        "memory_bytes": int(_first("/proc/meminfo", r"^MemTotal:\s*(\d+)")) * 1024,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "ticks": asdict(during),
        # Figures with a high share are unreliable.
        "steal_share": during.steal_share,
    }
