"""The running controller: sockets and clock around `Controller`, and its API."""

from __future__ import annotations

import asyncio
import gc
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from braid_sdn.fabric import config_changes
from braid_sdn.fabric.api import page, report
from braid_sdn.fabric.api.events import Event, Snapshot, changes
from braid_sdn.fabric.api.live import Live
from braid_sdn.fabric.api.server import Api
from braid_sdn.fabric.cluster.etcd_store import EtcdStore
from braid_sdn.fabric.cluster.file_store import FileStore
from braid_sdn.fabric.cluster.roles import REQUEST_INTERVAL, Roles
from braid_sdn.fabric.cluster.store import Cluster, Store
from braid_sdn.fabric.config import Config, ConfigError, digest
from braid_sdn.fabric.controller import Controller
from braid_sdn.fabric.listen_address import naming_address
from braid_sdn.fabric.model import Problem
from braid_sdn.fabric.plan.policies import Policies
from braid_sdn.fabric.switches.rules import is_our_cookie
from braid_sdn.openflow.flow_stats import DecodedRules
from braid_sdn.openflow.flows import FILTER_FIELDS, LINK_FIELDS
from braid_sdn.openflow.messages import Echo, EchoReply, FromSwitch, Hello, PortStatus, ToSwitch
from braid_sdn.openflow.pump import Pump
from braid_sdn.openflow.server import Server
from braid_sdn.openflow.tls import server_context
from braid_sdn.service_manager import tell_service_manager
from braid_sdn.web.access import WebAccess, urls
from braid_sdn.web.auth import Role
from braid_sdn.web.seal import SealKey

#: Messages to switches that are encoded at once.
MAX_SENT = 500

#: Seconds between two looks for changes to log: what comes and goes within is a flap, and problems count those.
LOG_INTERVAL = 1.0
#: Seconds after which it is looked again if something urgent is over, before what is shown or logged goes on.
URGENT_PAUSE = 0.02

#: Objects until the garbage collector looks at the youngest, such looks until it looks at the young ones, and those
#: until it looks at what has grown old since the last time. Then these are left alone, so that no look takes long,
#: however much the controller knows. All are looked at every COLLECTION_INTERVAL seconds: that holds up everything.
GC_YOUNGEST, GC_YOUNG, GC_OLD = 2_000, 1, 1
COLLECTION_INTERVAL = 3600.0
#: That of old objects.
MAX_GENERATION = 2

T = TypeVar("T")


class Service:
    """Passes messages between switches and the controller."""

    def __init__(self, config: Config, state_dir: Path, log: Callable[[Event], None] = lambda _: None) -> None:
        """Create it; `run` opens its sockets, and hands events to `log`. The page's tokens are in `state_dir`."""
        self._log = log
        self._logged = Snapshot()
        #: Why the configuration was not read anew, and keys of the last one that take a restart.
        self._reload_refused = self._restart_needed = ""
        self.config = config
        self._store = _store(config, state_dir)
        self._roles = Roles()
        self.controller = self._new_controller()
        #: The generation of the leadership for which the controller was made; None if it follows another one.
        self._led: int | None = self._store.standing.generation if self._store.leads() else None
        #: Kept, so that it is not collected before it ends.
        self._surpassing: asyncio.Task[None] | None = None
        self.server = Server(self)
        # The list's rules match fields by which those of somebody else are told from ours.
        self.server.decoded = DecodedRules(LINK_FIELDS, FILTER_FIELDS, is_our_cookie)
        self._loop = asyncio.get_running_loop()
        self._pump = Pump(self._send, self._timeout, self.server.turns)
        #: Messages to switches that had no turn yet.
        self._unsent: deque[tuple[int, ToSwitch]] = deque()
        self._access = WebAccess(state_dir, page.STATE_PREFIX, SealKey.from_environment())
        self._live = Live(self._snapshot, _unix_ms(), self._in_pieces)
        self._api = Api(
            self.controller,
            self._loop.time,
            self._pump.run_soon,
            self._live.journal,
            self._token,
            self._keep,
            self._leads,
        )
        self._show_cluster()

    async def run(self, socket: Path, http: tuple[str, int] | None) -> None:
        """Serve until cancelled."""
        web = self.config.web
        thread = page.serve(page.Page(self._api, self._live), self._access, web, self._log) if web else None
        tls = server_context(self.config.tls) if self.config.tls else None
        with naming_address("listen", self.config.host, self.config.port):
            listening = await self.server.listen(self.config.host, self.config.port, tls)
        await self._api.listen(socket, http, self.config.metrics)
        shown = "".join(f", page at {url}" for url in urls(web)[-1:])
        sys.stderr.write(f"ready: switches at {listening.sockets[0].getsockname()[:2]}, API at {socket}{shown}\n")
        sys.stderr.flush()
        tell_service_manager("READY=1")
        gc.callbacks.append(_leave_alone)
        _look_at_all()
        gc.set_threshold(GC_YOUNGEST, GC_YOUNG, GC_OLD)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_collect_garbage())
                group.create_task(self.server.watch_silence())
                group.create_task(self._log_changes())
                group.create_task(self._store.run(self._handle_standing))
                if self._store.me is not None:
                    group.create_task(self._tend_connections())
        finally:
            self._log(Event("stopped", {"switches": len(self.controller.topology.switches)}))
            self.stop()
            self.server.close()
            listening.close()
            if thread is not None:
                await thread.stop()
            await self._api.close()

    def stop(self) -> None:
        """Send nothing any more, and stop the timer."""
        self._pump.stop()

    async def _log_changes(self) -> None:
        while True:
            await asyncio.sleep(LOG_INTERVAL)
            await self.log_changes()

    async def log_changes(self) -> None:
        """Log what has changed since the last time, a piece of that in each turn of the loop."""
        fabric, before = self.controller, self._logged
        now = await self._in_pieces(Snapshot.pieces(fabric, self._loop.time(), before))
        if fabric is self.controller and before is self._logged:
            self._logged = now
            await self._in_pieces(self._tell(before, now))
            self._live.turn()

    def _tell(self, before: Snapshot, now: Snapshot) -> Generator[None, None, None]:
        for event in changes(before, now):
            self._tell_operator(event)
            yield

    async def _in_pieces(self, work: Generator[None, None, T]) -> T:
        """Do as many pieces of some work in each turn of the loop as there is time for.

        None is done while something urgent waits, for LOG_INTERVAL at most.
        """
        patience = LOG_INTERVAL
        while True:
            while self._leads() and self.controller.is_urgent and patience > 0:
                await asyncio.sleep(URGENT_PAUSE)
                patience -= URGENT_PAUSE
            try:
                next(work)
            except StopIteration as done:
                result: T = done.value
                return result
            if not self.server.turns.has_time():
                await asyncio.sleep(0)

    def reload(self, read: Callable[[], Config]) -> None:
        """Follow a configuration that is read anew as far as that takes no restart; nothing of a bad one."""
        try:
            fresh = read()
        except ConfigError as error:
            self._reload_refused = self.controller.reload_refused = str(error).replace("\n", "; ")
            self._tell_operator(Event("reload-refused", {"text": self._reload_refused}, warning=True))
            return
        self._reload_refused = self.controller.reload_refused = ""
        known, settings = self.config.settings, replace(fresh.settings, key=self.config.settings.key)
        restart = ", ".join(config_changes.restarting(self.config, fresh))
        self._restart_needed = self.controller.restart_needed = restart
        taken = ", ".join(config_changes.followed(known, settings))
        fields = {"taken": taken or "nothing differs", **({"restart": restart} if restart else {})}
        self.config = replace(self.config, settings=settings)
        if self.config.cluster is not None:
            self._store.set_digest(digest(settings))
        if settings.acl != known.acl:
            fields["acl"] = f"entries {len(settings.acl.entries)}, default {settings.acl.default}"
        if settings.flood != known.flood:
            fields["flood"] = settings.flood.text()
        is_by_name = bool(settings.tenants) and settings.names != known.names
        if settings.tenants != known.tenants or is_by_name:
            fields["tenants"] = ", ".join(each.name for each in settings.tenants.listed) or "none"
            self._begin_anew(Event("tenants-changed", fields, warning=bool(restart)))
            return
        now = self._loop.time()
        if settings.names != known.names:
            # Changes until now are told by the names of before, and another name is no change.
            for event in changes(self._logged, Snapshot.of(self.controller, now, self._logged)):
                self._tell_operator(event)
        self.controller.set_settings(now, settings)
        if settings.names != known.names:
            self._logged = Snapshot.of(self.controller, now)
        self._api.attach(self.controller)
        self._tell_operator(Event("reloaded", fields, warning=bool(restart)))
        self._pump.run_soon()

    def _tell_operator(self, event: Event) -> None:
        self._log(event)
        self._live.note(_unix_ms(), event)

    # Several controllers, of which one leads.

    def _new_controller(self, last_barrier: int = 0) -> Controller:
        """Return a controller that knows the policies alone: it continues from the rules that switches list."""
        kept = self._store.standing
        settings, nonce = self.config.settings, secrets.randbits(64)
        made = Controller(settings, time.thread_time, nonce=nonce, policies=kept.policies, last_barrier=last_barrier)
        made.policies_unread = kept.unread
        made.reload_refused, made.restart_needed = self._reload_refused, self._restart_needed
        return made

    def _leads(self) -> bool:
        """Return true if this controller may change switches at this moment."""
        return self._led is not None and self._store.leads()

    def _handle_standing(self) -> None:
        """Take in what the store says: who leads, and the policies."""
        standing, leads = self._store.standing, self._store.leads()
        if leads and self._led != standing.generation:
            self._led = standing.generation
            self._begin_anew(Event("leads", {"generation": standing.generation}))
        elif not leads and self._led is not None:
            self._follow()
        else:
            self._ask_for_role()
            if leads and standing.policies != self.controller.policies:
                self.controller.set_policies(self._loop.time(), standing.policies)
                self._pump.run_soon()
            self.controller.policies_unread = standing.unread
        self._show_cluster()

    def _follow(self) -> None:
        """Lead no more: nothing is changed from now on."""
        self._led = None
        leader = self._store.standing.leader
        self._begin_anew(Event("follows", {"leader": leader.name if leader else "nobody"}, warning=leader is None))

    def _begin_anew(self, event: Event) -> None:
        """Have a new controller, as after a restart, but keep the connections of switches."""
        self._unsent.clear()
        now, hellos = self._loop.time(), self.controller.hellos()
        self.controller = self._new_controller(self.controller.updater.last_barrier)
        self._show_cluster()
        # Before all else: what is sent next is refused to any other master.
        self._ask_for_role()
        for hello in hellos:
            self.controller.handle_switch(now, hello)
        self._api.attach(self.controller)
        # Changes that it does not know yet are not lost.
        self._logged = Snapshot.of(self.controller, now)
        self._tell_operator(event)
        self._pump.run_soon()

    def _ask_for_role(self) -> None:
        """Ask switches for the role, if it is another one than before."""
        if self._store.me is None or not self._roles.set_request(
            self._store.standing.generation, leads=self._leads()
        ):
            return
        self._request_role(*self.server.switches)

    def _request_role(self, *switches: int) -> None:
        if self._roles.request is not None:
            self.server.send([(dpid, self._roles.request) for dpid in switches])

    def _show_cluster(self) -> None:
        me, standing = self._store.me, self._store.standing
        if me is not None:
            wrong = (*self._store.problems(), *self._roles.problems(self.controller.topology.name))
            leads = self._leads()
            self.controller.cluster = Cluster(me, leads, standing.leader, standing.generation, wrong)

    async def _tend_connections(self) -> None:
        """Keep switches' connections alive while another controller leads, and ask those that do not follow again."""
        while True:
            await asyncio.sleep(REQUEST_INTERVAL)
            now = self._loop.time()
            if self._leads():
                self._request_role(*self._roles.due(now))
            else:
                stamp = Echo(round(now * 1e9).to_bytes(8, "big"))
                self.server.send([(dpid, stamp) for dpid in self.server.switches])

    # The page.

    def _snapshot(self) -> Generator[None, None, dict[str, Any]]:
        made = yield from report.snapshot_pieces(self.controller, self._loop.time())
        return {"unix_ms": _unix_ms(), **made}

    def _token(self, role: str, new: bool) -> dict[str, Any]:
        """Return the report of a role's login token; raises KeyError or OSError."""
        known = {each.word: each for each in Role}
        return self._access.report(known[role], self.config.web, new=new)

    async def _keep(self, policies: Policies) -> None:
        """Write policies down; raises StoreError."""
        await self._store.keep(policies)
        self.controller.policies_unread = ""

    # Events of switches.

    def connected(self, now: float, hello: Hello) -> None:
        """Handle a switch that has completed the handshake."""
        # The lease may be over meanwhile.
        self._ask_for_role()
        self._request_role(hello.dpid)
        self.controller.handle_switch(now, hello)
        self._pump.run_soon()

    def disconnected(self, now: float, dpid: int, why: str) -> None:
        """Handle the end of a switch's connection."""
        self._roles.handle_gone(dpid)
        self.controller.handle_gone(now, dpid, why)
        self._pump.run_soon()

    def message(self, now: float, dpid: int, message: FromSwitch) -> None:
        """Handle a switch's message."""
        if self._roles.handle(now, dpid, message):
            self.server.send(self._roles.poll_messages())
            is_idle = self._surpassing is None or self._surpassing.done()
            if is_idle and (later := self._roles.poll_later()) is not None:
                self._surpassing = self._loop.create_task(self._store.surpass(later))
            return
        # One that follows another controller knows switches and ports, and waits.
        if not self._leads() and not isinstance(message, PortStatus | EchoReply):
            return
        self.controller.handle(now, dpid, message)
        self._pump.run_soon()

    def rejected(self, now: float, address: str, code: str, text: str) -> None:
        """Report a switch that cannot be served."""
        # Its port changes with each attempt.
        self.controller.problems.report(now, Problem(code, f"switch at {address.rpartition(':')[0]}", text))

    # Time.

    def _timeout(self, now: float) -> None:
        if self._leads():
            self.controller.handle_timeout(now)

    def _send(self) -> float | None:
        """Send as many messages as there is time for, and some in any case."""
        turns = self.server.turns
        self.controller.longest_turn = turns.longest
        if not self._leads():
            # The lease may be over before the store says so, as after a long pause of this process.
            if self._led is not None:
                self._follow()
            self.controller.poll_messages()
            self._unsent.clear()
            return None
        self._unsent += self.controller.poll_messages()
        is_first = True
        while self._unsent and (is_first or turns.has_time()):
            self.server.send([self._unsent.popleft() for _ in range(min(MAX_SENT, len(self._unsent)))])
            is_first = False
        if self._unsent:
            self._pump.run_soon()
        self._api.notify()
        return self.controller.poll_timeout()


def _store(config: Config, state_dir: Path) -> Store:
    """Return the file's store, or etcd's, which begins with the file's policies if it has none."""
    alone = FileStore(state_dir)
    if config.cluster is None:
        return alone
    return EtcdStore(config.cluster, alone.standing.policies, unread=alone.standing.unread)


def _leave_alone(phase: str, info: Mapping[str, int]) -> None:
    """Have the garbage collector leave alone what it has looked at last as old."""
    if phase == "stop" and info["generation"] == MAX_GENERATION:
        gc.freeze()


def _look_at_all() -> None:
    """Look for garbage among all objects."""
    gc.unfreeze()
    gc.collect()
    # The next look at old ones is due once they are a quarter more than those that this one has found.
    gc.collect()


async def _collect_garbage() -> None:
    while True:
        await asyncio.sleep(COLLECTION_INTERVAL)
        _look_at_all()


def _unix_ms() -> int:
    return round(time.time() * 1000)
