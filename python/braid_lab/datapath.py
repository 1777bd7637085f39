"""The datapath of the daemons that the lab starts.

What decides is the same on each datapath, so tests and experiments that are not about one of them take it as a
parameter: inside of `net.open_vswitch.on_datapath`, `Braid` has Open vSwitch started beside a daemon, and configures
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from braid_lab.net.namespace import Namespace

#: Programs in the kernel, and both modes of Open vSwitch.
Datapath = Literal["ebpf", "packet-in", "group"]
DATAPATHS: tuple[Datapath, ...] = ("ebpf", "packet-in", "group")

#: Runs a switch in a namespace, with a run directory of its own.
StartSwitch = Callable[["Namespace", Path], contextlib.AbstractContextManager[None]]

_TABLE = "[datapath]\n"


@dataclass(frozen=True)
class Choice:
    """A datapath that needs a switch."""

    mode: Datapath
    start: StartSwitch

    def configuration(self, text: str, run_dir: Path) -> str:
        """Return a configuration with the switch as its datapath."""
        keys = f'kind = "openflow"\nopenflow_mode = "{self.mode}"\novs_run_dir = "{run_dir}"\n'
        if _TABLE in text:
            return text.replace(_TABLE, _TABLE + keys)
        return f"{text}\n{_TABLE}{keys}"


_CHOSEN: ContextVar[Choice | None] = ContextVar("datapath", default=None)


def chosen() -> Choice | None:
    """Return the datapath of daemons that are started now; None is eBPF."""
    return _CHOSEN.get()


def needs_whole_packets() -> bool:
    """Return True if devices must neither merge packets nor leave their segmentation to others."""
    return chosen() is not None


@contextlib.contextmanager
def choose(choice: Choice | None) -> Iterator[None]:
    """Have the daemons that start in a block use a datapath."""
    token = _CHOSEN.set(choice)
    try:
        yield
    finally:
        _CHOSEN.reset(token)
