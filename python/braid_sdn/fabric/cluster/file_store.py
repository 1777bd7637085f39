"""The store of a single controller: a file of its state directory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from braid_sdn.fabric.cluster.store import Member, Standing, StoreError
from braid_sdn.fabric.model import Problem
from braid_sdn.fabric.plan.policies import Policies
from braid_sdn.web import state_file

#: File of the operator's policies, in the state directory.
POLICIES_FILE = "fabric-policies.json"


class FileStore:
    """One controller, which always leads."""

    def __init__(self, state_dir: Path) -> None:
        """Read the file of a state directory."""
        self._path = state_dir / POLICIES_FILE
        policies, unread = kept_policies(self._path)
        self._standing = Standing(policies=policies, unread=unread)

    @property
    def me(self) -> Member | None:
        """None: it is the only one."""
        return None

    @property
    def standing(self) -> Standing:
        """Return the content of the file."""
        return self._standing

    def leads(self) -> bool:
        """Return true: there is no other."""
        return True

    def problems(self) -> Sequence[Problem]:
        """Return nothing: a file that cannot be read is reported with the policies."""
        return ()

    async def keep(self, policies: Policies) -> None:
        """Write policies to the disk; raises StoreError."""
        try:
            state_file.write(self._path, policies.store())
        except OSError as error:
            raise StoreError(f"cannot be kept, so nothing was changed: {error}; see --state-dir") from error
        self._standing = replace(self._standing, policies=policies, unread="")

    def set_digest(self, digest: str) -> None:
        """Do nothing: there are no others."""

    async def surpass(self, generation: int) -> None:
        """Do nothing: a single controller asks for no role."""

    async def run(self, changed: Callable[[], None]) -> None:  # noqa: ARG002
        """Wait until cancelled: nobody else changes the file."""
        await asyncio.get_running_loop().create_future()


def kept_policies(path: Path) -> tuple[Policies, str]:
    """Return the policies of a file; none, and why, if it cannot be read: the network goes on without them."""
    try:
        kept = state_file.read(path)
        return (Policies.stored(kept) if kept is not None else Policies()), ""
    except (OSError, ValueError) as error:
        return Policies(), f"{path}: {error}"
