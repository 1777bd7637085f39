"""The store of several controllers: etcd keeps the policies, and a key that is bound to a lease says who leads.

All controllers ask etcd a few times a second. Where nobody leads, one of them creates the leader's key, which lives
as long as its lease is renewed: etcd deletes it when the lease ends, and then the next one may. The revision at which
the key was created is the generation of that leadership: switches refuse an older one (OpenFlow 1.3 §6.3.5). Policies
are written under the condition that the key still is the writer's, so one that has lost it writes nothing.

The leader judges by itself when its lease ends: it counts from the moment at which it sent the last renewal that was
answered, so it stops before etcd lets another one lead. A renewal counts once a majority of etcd's servers has shown
the leader's key: one that is cut off from the others would renew a lease that they end.

An etcd that was set up anew, or restored, has lower revisions than switches know. So a third key has a number that is
added to the revision, and the leader raises it where a switch shows that it has to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from braid_sdn.fabric.cluster.etcd import (
    Endpoint,
    Etcd,
    EtcdError,
    KeyValue,
    RefusedError,
    is_created,
    is_modified,
    put,
)
from braid_sdn.fabric.cluster.store import Member, Standing, StoreError
from braid_sdn.fabric.model import Problem
from braid_sdn.fabric.plan.policies import Policies
from braid_sdn.openflow.tls import TlsFiles, client_context

#: Seconds for which a lease holds without renewal. etcd grants 2 s at least.
LEASE_TIME = 3.0
#: Part of a lease's time that the leader does not use: what it has sent by then arrives before the lease is over.
LEASE_MARGIN = 0.1
#: Times of a lease's: between two looks at etcd, until a renewal, for an answer, and from a failure to the next look.
LOOK_PART, RENEWAL_PART, ANSWER_PART, RETRY_PART = 1 / 6, 1 / 4, 1 / 4, 1 / 30

#: The latest generation of a switch that is surpassed: one that lies pushes others' no further (modulo 2^64).
MAX_SURPASSED = 1 << 62
#: Times that one leadership surpasses others: two of different etcds would do so for ever.
MAX_RAISES = 3

#: Below it are the keys of one fabric.
PREFIX = "/braid/fabric"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """One of several controllers, and where their etcd is."""

    me: Member
    endpoints: tuple[Endpoint, ...]
    #: Below it are the keys: another one for each fabric.
    prefix: str = PREFIX
    #: Seconds.
    lease: float = LEASE_TIME
    tls: TlsFiles | None = None
    #: Differs where the controllers' configurations do.
    digest: str = ""


@dataclass(frozen=True, slots=True)
class _Lease:
    number: int
    #: Times from which to renew it, and to count on it no more.
    renew_at: float
    ends: float


def boot_time() -> float:
    """Return seconds of a clock that goes on while the machine sleeps: a lease does too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class EtcdStore:
    """The store in etcd, and this controller's part in it."""

    def __init__(
        self,
        settings: ClusterSettings,
        inherited: Policies,
        etcd: Etcd | None = None,
        clock: Callable[[], float] = boot_time,
        unread: str = "",
    ) -> None:
        """Create it; `run` asks etcd. `inherited` are written there by the first leader, if there are none.

        `unread` says why the policies to inherit cannot be read; it is reported until etcd has others.
        Raises OSError or ssl.SSLError for files of TLS that are missing or do not belong together.
        """
        self._settings = settings
        self._clock = clock
        self._etcd = etcd or Etcd(settings.endpoints, client_context(settings.tls) if settings.tls else None)
        self._keys = tuple(f"{settings.prefix}/{word}" for word in ("leader", "policies", "generation"))
        self._leader_key, self._policies_key, self._base_key = self._keys
        self._standing = Standing(policies=inherited, unread=unread)
        self._lease: _Lease | None = None
        #: The revision at which this controller's own leadership began; None while another one leads, or nobody.
        self._own: int | None = None
        #: Added to that, it is the generation; and how often this leadership has raised it.
        self._base = self._raises = 0
        #: The revision at which the policies were last changed; 0 if there are none.
        self._revision = 0
        #: True once policies were read from etcd.
        self._has_read = False
        #: The digest of the leader's configuration.
        self._digest = settings.digest
        #: Why etcd did not answer the last time, or before it was asked.
        self._trouble = "it was not asked yet"
        # A look and a change one after another: what a look finds is never older than what a change wrote.
        self._turns = asyncio.Lock()

    @property
    def me(self) -> Member | None:
        """Return this controller's name and address."""
        return self._settings.me

    @property
    def standing(self) -> Standing:
        """Return the last answer of etcd."""
        if self._own is not None and not self.leads():
            return replace(self._standing, leader=None)
        return self._standing

    def leads(self) -> bool:
        """Return true while the leader's key is this controller's, and its lease certainly holds."""
        return self._own is not None and self._lease is not None and self._clock() < self._lease.ends

    def problems(self) -> Sequence[Problem]:
        """Return what is wrong with etcd and among the controllers."""
        found = []
        if self._trouble:
            then = (
                "this controller leads until its lease is over, and then nothing is changed until etcd answers"
                if self.leads()
                else "nobody here knows who leads, so nothing is changed by this controller"
            )
            text = f"{self._trouble}; {then}; packets go on by the rules that switches have"
            found.append(Problem("etcd-silent", "etcd", f"{text}; see whether etcd runs there and has its majority"))
        elif self.standing.leader is None:
            text = "no controller leads at this moment: one does once the last leader's lease is over"
            found.append(Problem("no-leader", "etcd", text))
        elif self._digest != self._settings.digest:
            text = (
                "has another configuration than this controller: links, edges, hosts, names and keys must be the same"
            )
            found.append(Problem("cluster-config", str(self._standing.leader), text))
        return found

    async def keep(self, policies: Policies) -> None:
        """Write policies to etcd, if this controller still leads; raises StoreError."""
        async with self._turns:
            if self._own is None or not self.leads():
                raise StoreError(self._misdirected(), 409)
            await self._keep(self._own, policies)

    async def _keep(self, own: int, policies: Policies) -> None:
        conditions = is_created(self._leader_key, own), is_modified(self._policies_key, self._revision)
        change = put(self._policies_key, json.dumps(policies.store()))
        try:
            done, found = await self._etcd.change(conditions, [change], self._keys, self._answer_time)
        except RefusedError as error:
            raise StoreError(f"cannot be kept, so nothing was changed: {error}", 503) from error
        except EtcdError as error:
            text = f"nobody knows whether it is kept: {error}; braid sdn fabric policies says so once etcd answers"
            raise StoreError(text, 503) from error
        self._take_in(*found)
        if not done:
            raise StoreError(
                self._misdirected() if self._own is None else "somebody else changed the policies: try again", 409
            )

    def _misdirected(self) -> str:
        leader = self.standing.leader
        if leader is None:
            return "no controller leads at this moment, so nothing was changed; see braid sdn fabric status"
        return f"{leader} leads, so nothing was changed here: run the command there"

    def set_digest(self, digest: str) -> None:
        """Compare the leader's configuration with another one, or have it known, at the next look."""
        self._settings = replace(self._settings, digest=digest)

    async def surpass(self, generation: int) -> None:
        """Raise the generation of this leadership, and of all later ones, above another one."""
        async with self._turns:
            if self._own is None or not self.leads() or self._raises >= MAX_RAISES or generation > MAX_SURPASSED:
                return
            base = generation + 1 - self._own
            if base > self._base:
                self._raises += 1
                is_own, change = is_created(self._leader_key, self._own), put(self._base_key, str(base))
                # If it fails, the switch refuses this generation once more.
                with contextlib.suppress(EtcdError):
                    _, found = await self._etcd.change([is_own], [change], self._keys, self._answer_time)
                    self._take_in(*found)

    async def run(self, changed: Callable[[], None]) -> None:
        """Follow etcd until cancelled, then step down."""
        try:
            while True:
                await self._look()
                changed()
                part = RETRY_PART if self._trouble else LOOK_PART
                await asyncio.sleep(part * self._settings.lease)
        finally:
            self._own, self._standing = None, replace(self._standing, leader=None)
            changed()
            if self._lease is not None:
                # So that the next one need not wait until it is over.
                with contextlib.suppress(EtcdError):
                    await self._etcd.revoke(self._lease.number, self._answer_time)
            self._etcd.close()

    @property
    def _answer_time(self) -> float:
        return ANSWER_PART * self._settings.lease

    async def _look(self) -> None:
        async with self._turns:
            try:
                lease = await self._renewed()
                found = await self._etcd.read(self._keys, self._answer_time)
                leader = found[0]
                is_old = leader is not None and leader.lease == lease.number and leader.value != self._presented()
                if leader is None or is_old:
                    change = put(self._leader_key, self._presented().decode(), lease.number)
                    as_read = [is_created(self._leader_key, leader.created if leader is not None else 0)]
                    _, found = await self._etcd.change(as_read, [change], self._keys, self._answer_time)
                self._lease = lease
                self._take_in(*found)
                if self._own is not None and found[1] is None and self._standing.policies != Policies():
                    await self._keep(self._own, self._standing.policies)
                self._trouble = ""
            except (EtcdError, StoreError) as error:
                self._trouble = str(error)

    def _presented(self) -> bytes:
        """Return what the leader's key says of this controller if it leads."""
        me = self._settings.me
        value = {"name": me.name, "address": me.address, "configuration": self._settings.digest}
        return json.dumps(value).encode()

    async def _renewed(self) -> _Lease:
        """Return this controller's lease, which is renewed if it is time, or made anew."""
        lease, began = self._lease, self._clock()
        if lease is not None and began < lease.renew_at:
            return lease
        number, seconds = 0, 0.0
        if lease is not None:
            number, seconds = lease.number, await self._etcd.renew(lease.number, self._answer_time)
        if not seconds:
            self._lease, self._own = None, None
            began = self._clock()
            number, seconds = await self._etcd.grant(round(self._settings.lease), self._answer_time)
        renew_at, ends = began + RENEWAL_PART * self._settings.lease, began + (1 - LEASE_MARGIN) * seconds
        return _Lease(number, renew_at, ends)

    def _take_in(self, leader: KeyValue | None, kept: KeyValue | None, base: KeyValue | None) -> None:
        now = self._standing
        self._base = int(base.value) if base is not None and re.fullmatch(rb"[0-9]{1,19}", base.value) else 0
        if leader is None:
            self._own = None
            now = replace(now, leader=None)
        else:
            is_own = self._lease is not None and leader.lease == self._lease.number
            if self._own != leader.created:
                self._raises = 0
            self._own = leader.created if is_own else None
            member, self._digest = _read_leader(leader.value)
            now = replace(now, leader=member, generation=leader.created + self._base)
        revision = kept.modified if kept is not None else 0
        if revision != self._revision and kept is not None:
            now = self._with_policies(now, kept.value)
        self._revision = revision
        self._standing = now

    def _with_policies(self, now: Standing, value: bytes) -> Standing:
        try:
            read = replace(now, policies=Policies.stored(json.loads(value)), unread="")
        except ValueError as error:
            # The network goes on by those before, but not by a file's, which may be undone since long ago.
            policies = now.policies if self._has_read else Policies()
            return replace(now, policies=policies, unread=f"{self._policies_key} of etcd: {error}")
        self._has_read = True
        return read


def _read_leader(value: bytes) -> tuple[Member, str]:
    """Return the leader and the digest of its configuration."""
    try:
        told = json.loads(value)
        return Member(str(told["name"]), str(told["address"])), str(told["configuration"])
    except (ValueError, TypeError, KeyError):
        return Member("a controller of another kind"), ""
