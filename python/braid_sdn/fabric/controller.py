"""The fabric controller, sans-IO: switches' messages go in, messages to switches come out.

Events update the view of the network (`topology`, `hosts`, `traffic`, `path_monitor`). `throttle` decides when to
make a new plan, `planner` makes it, `compiler` turns it into rules, and `updater` installs these. Times are seconds
of a monotonic clock.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace

from braid_sdn.fabric.acl import Acl
from braid_sdn.fabric.cluster.store import Cluster
from braid_sdn.fabric.edges.distribution import Distributor, Tables
from braid_sdn.fabric.edges.polling import CounterPoller
from braid_sdn.fabric.model import Graph, PortId, Problem
from braid_sdn.fabric.monitor.flapping_ports import FlappingPorts
from braid_sdn.fabric.monitor.flood_drops import FloodDrops
from braid_sdn.fabric.monitor.frame_sizes import FULL_PACKET, SHORT_PACKET, FrameSizes, Line, limited_switches, uneven
from braid_sdn.fabric.monitor.packet_in_limit import (
    MUTED_BURST,
    MUTED_RATE,
    PACKET_IN_RATE,
    PacketInLimit,
)
from braid_sdn.fabric.monitor.path_monitor import PathMonitor
from braid_sdn.fabric.monitor.probe import (
    EXPERIMENTAL,
    TAGGED_HEADER_BYTES,
    ForgedError,
    Kind,
    Probe,
    is_probe,
    mac_text,
    open_frame,
    seal,
    untagged,
)
from braid_sdn.fabric.monitor.probe_train import ProbeTrains
from braid_sdn.fabric.monitor.problems import RETENTION, Problems
from braid_sdn.fabric.plan import network_state, planner
from braid_sdn.fabric.plan.flood_rates import FloodRates
from braid_sdn.fabric.plan.forecast import Forecasts, PathSample, Scheduler
from braid_sdn.fabric.plan.plan import Edge, Flood, Host, Pair, Plan
from braid_sdn.fabric.plan.policies import Hop, Policies
from braid_sdn.fabric.plan.port_roles import PortRoles, names_of
from braid_sdn.fabric.plan.throttle import Throttle
from braid_sdn.fabric.settings import FloodSettings, HostSettings, Settings
from braid_sdn.fabric.switches import acl, flood_limit, rules
from braid_sdn.fabric.switches.acl_placement import AclPlacement
from braid_sdn.fabric.switches.admission import Admission, SwitchPorts
from braid_sdn.fabric.switches.arp_relay import ArpRelay, to_host
from braid_sdn.fabric.switches.audit import AUDIT_INTERVAL, Audit
from braid_sdn.fabric.switches.compiler import MAX_HOST_RULES, Compiler
from braid_sdn.fabric.switches.flood_limit import Limited, SwitchLimits
from braid_sdn.fabric.switches.meter_rates import RefusedRate
from braid_sdn.fabric.switches.updater import RuleUpdater, Step
from braid_sdn.fabric.tenants import DPID_BITS, NOBODY
from braid_sdn.fabric.view.address_frames import address_claim, address_probe, address_request
from braid_sdn.fabric.view.conversations import Conversations
from braid_sdn.fabric.view.discovery import DiscoverySchedule
from braid_sdn.fabric.view.hosts import Hosts
from braid_sdn.fabric.view.load import COUNTER_PERIOD
from braid_sdn.fabric.view.path_capacity import PathCapacity, PathLoad
from braid_sdn.fabric.view.path_rates import PathRates
from braid_sdn.fabric.view.topology import LinkDirection, Topology
from braid_sdn.fabric.view.traffic import Traffic, graph_of
from braid_sdn.fabric.view.untrusted_links import UntrustedLinks
from braid_sdn.openflow.messages import (
    LAST_PORT,
    AddRule,
    BarrierReply,
    DeleteRule,
    Echo,
    EchoReply,
    FlowStatsReply,
    FlowStatsRequest,
    FromSwitch,
    GroupFeatures,
    GroupFeaturesRequest,
    GroupsReply,
    GroupsRequest,
    Hello,
    Malformed,
    MeterCountersReply,
    MeterCountersRequest,
    MeterFeatures,
    MeterFeaturesRequest,
    PacketIn,
    PacketOut,
    PortStatsReply,
    PortStatsRequest,
    PortStatus,
    Refused,
    Reserved,
    Rule,
    RuleKey,
    SetMeter,
    ToSwitch,
)

#: The first plan waits until nothing new was found for this long, seconds, but at most MAX_FIRST_PLAN_DELAY.
SETTLE_TIME = 1.0
MAX_FIRST_PLAN_DELAY = 30.0
#: Seconds for which it waits for switches that other switches' rules lead to: Open vSwitch tries to connect at least
#: every 8 s. A plan without them would delete the rules by which their hosts are reached.
RECONNECT_TIME = 10.0

#: Seconds between two examinations of the paths of pairs that send; longer if there are many.
EXAMINE_PERIOD = 0.5
#: Pairs that are examined a second at most.
MAX_EXAMINED_PER_SECOND = 500.0

#: Seconds between two audits because of frames that are not ours: another controller may have sent them.
SUSPICION_INTERVAL = 5.0

#: Seconds after which the next plan compares all trees with the best ones in any case, since latencies change; longer
#: in a large network, by this number of its links times its trees a second.
REVIEW_INTERVAL = 10.0
MAX_REVIEWED_PER_SECOND = 16_000.0
#: Links of the network times trees that are made or compared in one plan at most: rules of so many change in 30 ms.
MAX_TREE_ARCS = 16_000

#: Seconds between two looks at which links there are, for measuring what they carry.
SIZED_INTERVAL = 1.0

#: Pairs of edges whose paths are compared by what they carry: more would take longer than a turn of the loop may.
MAX_COMPARED_PAIRS = 1000

#: Switches whose own rules are made in one turn for the first plan: no switch is told of any before all are made.
MAX_FIRST_SWITCHES = 100

#: Rules of the access control list whose counters are read in a period.
MAX_COUNTED_RULES = 4000
#: Rules of the access control list that are looked at in one turn, but all of one switch.
MAX_LIST_RULES = 1000

#: Seconds of work on a plan after which messages of switches have their turn.
MAX_PIECE = 0.01
#: The same while a failure or a change waits for that plan.
MAX_URGENT_PIECE = 0.03

#: Seconds after which another plan is made where no tag was left for a tree or the flood, and where one ended in an
#: error.
TAG_RETRY = 5.0
ERROR_RETRY = 5.0

#: A plan, and the state of the network that it is made for.
MadePlan = tuple[Plan, planner.NetworkState]

NO_POLICIES = Policies()

#: Rate of a path, bit/s, below which a train of probes is not falsified by it.
IDLE_RATE = 1e5


def _audit_interval(settings: Settings) -> float:
    # Hosts that have no address to be asked for show by their counters that they are there.
    return min(AUDIT_INTERVAL, settings.host_lifetime / 3)


class Controller:
    """Controls one fabric."""

    def __init__(
        self,
        settings: Settings,
        stopwatch: Callable[[], float],
        *,
        nonce: int = 0,
        policies: Policies = NO_POLICIES,
        last_barrier: int = 0,
    ) -> None:
        """Create it without switches. `nonce` tells instances apart.

        `last_barrier` is the token of the last barrier that another instance sent over the same connections.

        `stopwatch` measures planning alone, by the processor's time: on a busy machine a plan would go to pieces by
        the clock's, and wait for its turn before each.
        """
        self.settings = settings
        #: Tells this controller's tables from those of its predecessors.
        self.nonce = nonce
        self.topology = Topology(names=dict(settings.names))
        self.port_roles = PortRoles()
        self.hosts = Hosts(settings.host_lifetime, tenant_of=self.tenant_of)
        self.untrusted_links = UntrustedLinks()
        self.conversations = Conversations(settings.host_lifetime)
        self.traffic = Traffic()
        self.path_monitor = PathMonitor()
        self.path_capacity = PathCapacity()
        self.path_rates = PathRates()
        self.forecasts = Forecasts()
        self.probe_trains = ProbeTrains()
        self.frame_sizes = FrameSizes(settings.frame_bytes or FULL_PACKET)
        #: The topology's list of the links whose sizes are measured, and when it was read.
        self._sized: Sequence[LinkDirection] = ()
        self._sized_at = float("-inf")
        #: Switches that seem to have a limit, and links that carry less than others, with what both depend on.
        self._compared: tuple[tuple[int, int], dict[int, int], dict[Hop, int]] = ((-1, -1), {}, {})
        self.problems = Problems()
        self.plan = Plan()
        #: The plan that is being made, the seconds that it took so far, and when its last piece was made.
        self._work: Generator[None, None, MadePlan] | None = None
        self._worked = 0.0
        self._work_at: float | None = None
        #: That plan once it is made, until it is followed.
        self._made: MadePlan | None = None
        #: Switches with fast failover groups when the last plan began.
        self._failover_planned = frozenset[int]()
        #: When that plan was followed as far as one turn went.
        self._followed_at = 0.0
        #: True once the rules of the first plan are all made, so that switches are told of them.
        self._is_first_followed = False
        #: True if a failure or a change waits for that plan.
        self._is_work_urgent = False
        self.policies = policies
        #: The other controllers; None if this is the only one. One that follows is told of no packets.
        self.cluster: Cluster | None = None
        #: Why those that an operator has set cannot be read; empty if they can.
        self.policies_unread = ""
        #: True once switches have all that the policies lead to.
        self.policies_in_place = self._policies_planned = False
        #: Those by which the traffic of all pairs was split last, and true if the plan that is being made keeps it.
        self._split_policies: Policies | None = None
        self._keeps_pairs = False
        self.graph = Graph.of(())
        self.edges: tuple[Edge, ...] = ()
        #: Edges that were taken out of the configuration: their tables have no paths, so that they use none.
        self.former_edges = set[str]()
        self.distributor = Distributor()
        self.poller = CounterPoller(self.path_monitor, self.distributor, self.path_rates)
        #: Processor seconds that each of the last plans took.
        self.planning: list[float] = []
        #: The longest turn of the loop, processor seconds; kept by its driver.
        self.longest_turn = 0.0
        #: Packets that switches sent.
        self.packet_ins = 0
        #: When the first switch connected.
        self.first_switch: float | None = None
        self.compiler = Compiler(tenants=settings.tenants, digest=settings.tenants.digest(settings.names))
        self.acl = AclPlacement(settings.acl, rules.SOURCES if settings.tenants else rules.PATHS)
        #: The ports of the plan and of switches that it was followed for last.
        self._acl_ports: tuple[object, ...] = (None,)
        #: Why the configuration was not read anew; empty if the last one is followed.
        self.reload_refused = ""
        #: Keys of the last one that take a restart; empty if there are none.
        self.restart_needed = ""
        self.updater = RuleUpdater(drain=settings.drain, rank=self.compiler.rank, last_barrier=last_barrier)
        #: Switches that are connected and cannot be served with tenants.
        self.wide: dict[int, Hello] = {}
        self.admission = Admission(self._roles_of_ports, self.updater.new_barrier)
        self.audit = Audit(_audit_interval(settings))
        self._schedule = DiscoverySchedule()
        self._throttle = Throttle()
        self._stopwatch = stopwatch
        #: True once a plan was made.
        self.planned = False
        #: With tenants: the names that each switch's ports had last, and true if one has another by now, until a plan
        #: knows that.
        self._port_names: dict[int, dict[int, str]] = {}
        self._is_renumbered = False
        #: Ports that were links for the previous controller, until the first plan.
        self._expected_links: set[PortId] = set()
        #: Roots of trees that are to be compared with the best ones, and when all are next.
        self._review: tuple[int, ...] = ()
        self._review_at = 0.0
        #: When the graph was made.
        self._graph_at = float("-inf")
        self._count_at: float | None = None
        #: When the paths of pairs that send are examined.
        self._examine_at: float | None = None
        self._nonce = 0
        self._arp_relay = ArpRelay()
        self._packet_ins = PacketInLimit()
        self.flapping_ports = FlappingPorts()
        #: Switches with fast failover groups, and the groups of those that were asked for them last.
        self.failover: set[int] = set()
        #: True if switches drop marked packets that no detour leads on; also after failover was turned off.
        self._drops_marked = settings.failover
        #: Switches that refused a rule for marked packets.
        self._refused_marks: set[int] = set()
        #: Switches that have the meter for muted ports without one of their own.
        self._muting_shared: set[int] = set()
        self._groups: dict[int, GroupsReply] = {}
        #: The highest meters of each switch; 0 where it has none, or refused a rule that limits floods.
        self.meters: dict[int, MeterFeatures] = {}
        #: Ports that may have so much flooded, by their switches, and what their meters dropped.
        self.limited: dict[int, tuple[Limited, ...]] = {}
        #: The same by the numbers of their meters.
        self._limited_by: dict[int, dict[int, Limited]] = {}
        #: All that is limited at each switch, with what that was made of.
        self._flood_limits: dict[int, tuple[tuple[object, ...], SwitchLimits]] = {}
        self._flood_rates = FloodRates()
        self.flood_drops = FloodDrops()
        #: Number of ports for which a switch has too few meters to limit their floods.
        self.unlimited: dict[int, int] = {}
        #: Rules that are not ours and stay at their switches.
        self.foreign: dict[int, tuple[str, ...]] = {}
        #: Why each switch last refused a rule.
        self.refusals: dict[int, str] = {}
        #: When each switch last showed the marker of another controller.
        self._others: dict[int, float] = {}
        self._suspected: float = float("-inf")
        #: When switches that had rules of ours left; and of those that came back without any, until their ports tell
        #: whether they restarted.
        self._left: dict[int, float] = {}
        self._emptied: dict[int, float] = {}
        self._out: list[tuple[int, ToSwitch]] = []

    @property
    def is_urgent(self) -> bool:
        """True if a failure or a change waits for a plan, or for its end."""
        return self._throttle.urgent or self._is_work_urgent or self._is_rest_urgent

    @property
    def tables(self) -> Tables:
        """The edges' tables."""
        return self.distributor.tables

    # Events.

    def handle_switch(self, now: float, hello: Hello) -> None:
        """Take in a switch that has connected."""
        if not self.settings.tenants:
            self._join(now, hello)
            return
        if hello.dpid in self.topology.switches:
            self.handle_gone(now, hello.dpid, "it connected anew")
        if hello.dpid >> DPID_BITS:
            # Rules of ours that it has from before there were tenants must not stay.
            self.wide[hello.dpid] = hello
            self._tell(hello.dpid, FlowStatsRequest())
            return
        for message in self.admission.handle_switch(now, hello):
            self._tell(hello.dpid, message)

    def hellos(self) -> list[Hello]:
        """Return the switches that are connected, as another controller is to be told of them."""
        known = self.topology.switches
        joined = [Hello(dpid, tuple(each.ports.values()), each.address) for dpid, each in sorted(known.items())]
        return [*joined, *(each.hello for each in self.admission.applicants.values()), *self.wide.values()]

    def _join(self, now: float, hello: Hello) -> None:
        """Begin discovery at a switch."""
        dpid = hello.dpid
        if self.first_switch is None:
            self.first_switch, self._count_at = now, now + COUNTER_PERIOD
        ports = [port for port in hello.ports if port.number <= LAST_PORT]
        if self.settings.tenants:
            self._forget_renumbered(now, dpid, {port.number: port.name for port in ports})
        if self.topology.handle_switch(now, dpid, ports, hello.address):
            self._throttle.failure(now)
        self.traffic.forget(dpid)
        self.path_monitor.revive(now, dpid)
        # Discovery first: without it nothing else can be decided.
        self._tell(dpid, AddRule(rules.base()[0]))
        self._muting_shared.discard(dpid)
        self._tell(dpid, MeterFeaturesRequest())
        self._tell(dpid, GroupFeaturesRequest())
        self._ask_rules(now, dpid)
        self._schedule.add_switch(now, dpid)
        for number in self.topology.switches[dpid].up():
            self._schedule.at_once(now, PortId(dpid, number))
        self._throttle.improvement(now)

    def _forget_renumbered(self, now: float, dpid: int, names: dict[int, str]) -> None:
        """Forget all that is known of ports of a switch whose numbers are other ports' now, or nobody's.

        Rules for what was there would be made anew, with the tenant of before.
        """
        before, self._port_names[dpid] = self._port_names.get(dpid, {}), names
        gone = [PortId(dpid, port) for port, name in before.items() if names.get(port) != name]
        if not gone:
            return
        for port in gone:
            self.hosts.lose_port(port)
            self.topology.lose_port(now, port)
        self.compiler.forget(dpid)
        # No rule is made by a plan from before, nor another plan by its graph.
        self._drop_work()
        self._is_renumbered = True
        self._throttle.failure(now)

    def handle_gone(self, now: float, dpid: int, why: str) -> None:
        """Take in that a switch's connection ended, and why."""
        self.wide.pop(dpid, None)
        self.admission.handle_gone(dpid)
        self.topology.handle_gone(now, dpid, why)
        if self.updater.installed.get(dpid):
            self._left[dpid] = now
        self._emptied.pop(dpid, None)
        self.updater.handle_gone(now, dpid)
        for mac in self.conversations.forget(dpid):
            self.compiler.dismiss(dpid, mac)
        self._replace_doubtful(now)
        self.audit.forget(dpid)
        self._schedule.remove_switch(dpid)
        self._packet_ins.forget(dpid)
        self.flapping_ports.forget(dpid)
        for known in (self.meters, self._groups, self.foreign, self._others, self.refusals):
            known.pop(dpid, None)

    def handle(self, now: float, dpid: int, message: FromSwitch) -> None:
        """Take in a switch's message."""
        if dpid in self.admission.applicants:
            for reply in self.admission.handle(dpid, message):
                self._tell(dpid, reply)
            hello = self.admission.poll_admitted(dpid, message)
            if hello is not None:
                self._join(now, hello)
        if dpid in self.wide and isinstance(message, FlowStatsReply):
            for each in message.rules:
                if rules.is_ours(each.rule):
                    self._tell(dpid, DeleteRule(each.rule.key))
        if dpid not in self.topology.switches:
            return
        match message:
            case PacketIn():
                self._packet(now, PortId(dpid, message.in_port), message.data)
            case PortStatus():
                self._port(now, dpid, message)
            case EchoReply() if len(message.data) == 8:
                sent = int.from_bytes(message.data, "big") / 1e9
                if 0 <= now - sent < 10:
                    self.topology.switches[dpid].echo.add(now, now - sent)
            case PortStatsReply():
                self.traffic.handle_ports(dpid, message.ports)
                self._see_whether_failed_open(now, dpid, max((port.age for port in message.ports), default=0.0))
                self.topology.handle_counters(now, dpid, message.ports)
            case FlowStatsReply():
                self._rules(now, dpid, message)
            case MeterFeatures():
                self.meters[dpid] = message
                if message.highest_by_bits and not self.settings.flood.is_off:
                    self._throttle.improvement(now)
            case MeterCountersReply():
                self._metered(now, dpid, message)
            case GroupFeatures(most):
                self._refused_marks.discard(dpid)
                self._set_failover(
                    now, dpid, has_groups=self.settings.failover and most >= max(1, self._most_groups(dpid))
                )
            case GroupsReply():
                self._groups[dpid] = message
            case BarrierReply():
                self.updater.handle_barrier(now, dpid, message.token)
            case Refused():
                self._refused(now, dpid, message)
            case Malformed(what):
                text = f"sends {what} that cannot be read: ignored, and asked for again; see its version"
                self.problems.report(now, Problem("malformed", self.topology.name(dpid), text))
        self._advance(now)

    def handle_timeout(self, now: float) -> None:
        """Do all that is due; early and late calls are harmless."""
        self._discover(now)
        if self.topology.expire(now):
            self._throttle.failure(now)
            if self.topology.became_stale == now:
                # No tree is broken, but there may be better ones.
                self._review_at = now
        if self._age_hosts(now):
            self._throttle.change(now)
        self.poller.handle_timeout(now)
        died, other = self.path_monitor.judge(now)
        if died:
            self._ask_links(now, {*died})
        if died or other:
            self._throttle.failure(now)
        for dpid in self.topology.due_counter_polls(now):
            self._tell(dpid, PortStatsRequest())
        self._probe(now)
        self._measure_sizes(now)
        if self._count_at is not None and now >= self._count_at:
            self._count(now)
        if self._examine_at is not None and now >= self._examine_at:
            self._examine(now)
        # A list of all rules takes longer than a piece of a plan: what is urgent goes first, but not for ever.
        for dpid in self.audit.due(now - (AUDIT_INTERVAL if self.is_urgent else 0.0), idle=self.updater.idle):
            self._ask_rules(now, dpid)
        for dpid in self.audit.renewals(now):
            for rule in (*rules.leases(), rules.marker(self.nonce)):
                self._tell(dpid, AddRule(rule))
        self.updater.handle_timeout(now)
        if self.updater.has_unsent:
            # One thing in each turn.
            pass
        elif self._work is not None:
            self._go_on(now, self._work)
        elif self._is_rest_urgent:
            self._follow(now)
        elif self._throttle.due(now, busy=self.updater.is_waiting) and self._settled(now):
            self._begin_plan(now)
        elif self._has_rest and not self.updater.is_waiting:
            self._follow(now)
        self._replace_doubtful(now)
        self.distributor.handle_timeout(now)
        self._advance(now)

    def handle_edge(self, now: float, edge: str, *, current: bool) -> bool:
        """Take in an edge's request for its next table; `current` if it follows the present one.

        Returns true if that made a new table.
        """
        generation = self.tables.generation
        self.distributor.handle_request(now, edge, current=current)
        if current:
            self.updater.handle_confirmed(now, edge)
        self._advance(now)
        return self.tables.generation != generation

    def handle_shim(self, edge: str, *, wanted: bool) -> bool:
        """Take in an edge's wish for shims; return true if it changed."""
        known = any(each.name == edge for each in self.settings.edges)
        # Switches cannot read what is behind an edge's numbers.
        wanted = wanted and not self.acl.acl.reads_ip
        if not known or wanted == (edge in self.distributor.shims) or (wanted and self._refuses_numbers()):
            return False
        self.distributor.shims ^= {edge}
        return True

    def _refuses_numbers(self) -> bool:
        """Return true if a switch refuses numbered packets, as by a list that is about to go."""
        ports = [edge.port for edge in self.edges]
        return any(acl.hidden(port.port)[0].key in self.updater.installed.get(port.switch, {}) for port in ports)

    def forget_host(self, now: float, host: Host) -> None:
        """Forget a host; its next packet teaches it again."""
        if self.hosts.forget(host.mac):
            self._throttle.change(now)

    def set_policies(self, now: float, policies: Policies) -> None:
        """Follow other policies; trees are compared with what they would be by these."""
        before, self.policies = self.policies, policies
        if policies.ways != before.ways:
            self.policies_in_place = False
            self._policies_planned = False
            self._review_at = now
        self._place_hosts(now)
        self._set_capacities()
        self._throttle.change(now)

    def static_hosts(self) -> list[HostSettings]:
        """Return the hosts that stay where they are, by the configuration and by an operator."""
        return network_state.static_hosts(self.settings, self.policies, self.topology)

    def set_settings(self, now: float, wanted: Settings) -> None:
        """Follow another configuration, whose key and tenants are the same; paths change make before break."""
        before, self.settings = self.settings, wanted
        if wanted.names != before.names:
            self.topology.names = dict(wanted.names)
            # Those of single ports are by names of switches.
            self._flood_limits = {}
        if wanted.host_lifetime != before.host_lifetime:
            self.hosts.lifetime = self.conversations.lifetime = wanted.host_lifetime
            self.audit.interval = _audit_interval(wanted)
        if wanted.frame_bytes != before.frame_bytes:
            self.frame_sizes.set_need(wanted.frame_bytes or FULL_PACKET)
            self._compared = ((-1, -1), {}, {})
        if wanted.scheduler is not before.scheduler:
            self.forecasts.clear()
        if wanted.failover != before.failover:
            for dpid in self.topology.switches:
                self._tell(dpid, GroupFeaturesRequest())
            self._drops_marked |= wanted.failover
        if wanted.acl != self.acl.acl:
            self.set_acl(now, wanted.acl)
        if wanted.flood != before.flood:
            self.set_flood(now, wanted.flood)
        names = {edge.name for edge in wanted.edges}
        self.former_edges = (self.former_edges | {edge.name for edge in before.edges}) - names
        self.distributor.shims &= names
        self._place_hosts(now)
        self._set_capacities()
        if wanted != before:
            self._throttle.change(now)
            self._throttle.load(now)

    def _place_hosts(self, now: float) -> None:
        placed = network_state.resolve_hosts(self.static_hosts(), self.settings, self.topology)
        self.hosts.set_static(now, placed)

    def _set_capacities(self) -> None:
        """Take over capacities that are configured or set; forget what was learned of a link with another one."""
        wanted = network_state.configured_capacities(self.settings, self.policies, self.topology)
        before, self.traffic.configured = self.traffic.configured, wanted
        changed = {port for port in before.keys() | wanted.keys() if before.get(port) != wanted.get(port)}
        if changed:
            self.path_capacity.forget(changed)
            self._graph_at = float("-inf")

    def serves_edge(self, name: str) -> bool:
        """Return true if there is a table for an edge of this name."""
        return name in self.former_edges or any(edge.name == name for edge in self.settings.edges)

    def set_acl(self, now: float, wanted: Acl) -> None:
        """Follow another access control list."""
        self.acl.change(wanted)
        if wanted.reads_ip:
            self.distributor.shims.clear()
        self._throttle.change(now)

    def set_flood(self, now: float, wanted: FloodSettings) -> None:
        """Follow other limits on floods."""
        self.settings = replace(self.settings, flood=wanted)
        for dpid, known in self.meters.items():
            if not known.highest_by_bits:
                # It may take these, if it refused those of before.
                self._tell(dpid, MeterFeaturesRequest())
        self._throttle.change(now)

    def poll_messages(self) -> list[tuple[int, ToSwitch]]:
        """Return messages to send with their switches, in this order."""
        out, self._out = self._out + self.updater.poll_messages() + self.updater.poll_rates(), []
        return out

    def poll_timeout(self) -> float | None:
        """Return when to call `handle_timeout`."""
        plan = self._work_at
        if self._work is None:
            plan = self._throttle.poll_timeout(busy=self.updater.is_waiting)
            if self._is_rest_urgent or (self._has_rest and not self.updater.is_waiting):
                plan = self._followed_at
        if plan is not None and not self.planned and self.first_switch is not None:
            plan = max(plan, self._first_plan(self.first_switch))
        every = (
            plan,
            self._count_at,
            self._examine_at,
            self._schedule.poll_timeout(),
            self.frame_sizes.poll_timeout(),
            self.topology.poll_timeout(),
            self.hosts.poll_timeout(),
            self.path_monitor.poll_timeout(),
            self.updater.poll_timeout(),
            self.audit.poll_timeout(idle=self.updater.idle and not self.is_urgent),
            self.distributor.poll_timeout(),
            self._arp_relay.poll_timeout() if self._arp_relay.is_holding and self._floods() else None,
        )
        return min((at for at in every if at is not None), default=None)

    # Handlers of single events.

    def _tell(self, dpid: int, message: ToSwitch) -> None:
        self._out.append((dpid, message))

    def _ask_rules(self, now: float, dpid: int) -> None:
        """Ask a switch for all its rules and groups. The groups come first."""
        # Those that were listed for an audit that came to nothing may be gone.
        self._groups.pop(dpid, None)
        self._tell(dpid, GroupsRequest())
        self._tell(dpid, self.audit.ask(now, dpid, self.updater.changes))

    def _most_groups(self, dpid: int) -> int:
        """Return the number of groups that a switch gets at most: two for each two of its ports, in either order."""
        ports = len(self.topology.switches[dpid].ports)
        return 2 * ports * (ports - 1)

    def _set_failover(self, now: float, dpid: int, *, has_groups: bool) -> None:
        if has_groups != (dpid in self.failover):
            self.failover ^= {dpid}
            (self._throttle.improvement if has_groups else self._throttle.failure)(now)

    def _packet(self, now: float, arrived: PortId, frame: bytes) -> None:
        self.packet_ins += 1
        if not self.topology.is_heard(arrived) and not self._packet_ins.handle_packet(now, arrived):
            self._mute(now, arrived)
            # An edge sends our probes back, whatever its hosts do.
            if not (self._is_edge(arrived) and frame[12:14] == EXPERIMENTAL.to_bytes(2, "big")):
                return
        try:
            probe = open_frame(frame, self.settings.key, round(now * 1e9))
        except ForgedError as why:
            self._forged(now, arrived, str(why))
            return
        if probe is not None:
            self._probed(now, arrived, probe)
        elif arrived.port <= LAST_PORT and len(frame) >= 14:
            self._from_host(now, arrived, frame)

    def _is_edge(self, port: PortId) -> bool:
        return any(edge.port == port for edge in self.edges)

    def _mute(self, now: float, port: PortId) -> None:
        """Have a switch itself deal with the unknown hosts of a port that sends us too much."""
        if not self._packet_ins.mute(now, port, now + rules.MUTE_LEASE):
            return
        rate = f"more than {PACKET_IN_RATE:g} packets a second of unknown hosts, ARP or discovery"
        text = f"sends {rate}: they are flooded within limits, and nobody is learned there meanwhile; see who it is"
        self.problems.report(now, Problem("packet-in-flood", self.topology.port_name(port), text))
        has = self.updater.meters.get(port.switch, {})
        meter = self._muting_meter(port)
        tags = {tenant: flood.tag for tenant, flood in self._floods().items()}
        trunk = self.trunk_at(port)
        if trunk:
            hosts = [rules.Muted(tags.get(tenant), tenant, vid) for vid, tenant in sorted(trunk.items())]
        else:
            tenant = self.tenant_of(port)
            hosts = [rules.Muted(tags.get(tenant), tenant)]
        for each in self.limited.get(port.switch, ()):
            if each.port == port.port and {each.meter, each.address_meter} <= has.keys():
                meters = {"flood_meter": each.meter, "address_meter": each.address_meter}
                hosts = [replace(one, **meters) if each.tenant in (NOBODY, one.tenant) else one for one in hosts]
        for rule in rules.muted(port.port, hosts, meter, edge=self._is_edge(port)):
            self._tell(port.switch, AddRule(rule))

    def _muting_meter(self, port: PortId) -> int | None:
        """Create the meter of a port that floods us; None if the switch has none for it."""
        known = self.meters.get(port.switch, MeterFeatures(0))
        limits_floods = known.highest_by_bits and not self.settings.flood.is_off
        meter = flood_limit.muting_meter(port.port, known.highest_by_bits) if limits_floods else port.port
        if meter > known.highest or meter in self.updater.meters.get(port.switch, {}):
            return None
        if meter != port.port and port.switch in self._muting_shared:
            # A meter that is created anew takes other ports' rules with it.
            return meter
        if meter != port.port:
            self._muting_shared.add(port.switch)
        self._tell(port.switch, SetMeter(meter, MUTED_RATE, MUTED_BURST))
        return meter

    def _metered(self, now: float, dpid: int, message: MeterCountersReply) -> None:
        """Take in what a switch's meters have dropped of what ports have flooded."""
        counters = {each.number: each for each in message.meters}
        for each in self.limited.get(dpid, ()):
            for number in (each.meter, each.address_meter):
                if number in counters:
                    self.flood_drops.handle_counters(now, (PortId(dpid, each.port), each.tenant), counters[number])

    def _forged(self, now: float, arrived: PortId, why: str) -> None:
        """Handle a frame that claims to be ours: of a host that lies, or of another controller."""
        if self._others:
            return
        if now - self._suspected >= SUSPICION_INTERVAL:
            self._suspected = now
            self.audit.soon(now, arrived.switch)
        where = self.topology.port_name(arrived)
        text = f"a frame claims to be our own, but {why}: ignored; see who is plugged in there"
        self.problems.report(now, Problem("forged-probe", where, text))

    def _probed(self, now: float, arrived: PortId, probe: Probe) -> None:
        seconds = now - probe.sent / 1e9
        if probe.kind is Kind.PATH:
            self.path_monitor.handle_path_probe(now, probe.tag, seconds)
            self.probe_trains.handle_path_probe(probe.tag, probe.sent / 1e9)
        elif probe.kind is Kind.TRAIN:
            self.probe_trains.handle_frame(now, probe.tag, probe.sent / 1e9)
        elif probe.kind is Kind.EDGE:
            names = [edge.name for edge in self.edges if edge.port == arrived == probe.source]
            if names and self.path_monitor.handle_edge_probe(now, names[0], seconds):
                self._throttle.improvement(now)
        elif probe.kind is Kind.PADDED:
            self._handle_padded(now, (probe.source, arrived), probe, seconds)
        elif not self.may_link(probe.source, arrived):
            tenants, ends = self.settings.tenants, (probe.source, arrived)
            listed = frozenset(end for end in ends if tenants.is_listed(*names_of(end, self.topology)))
            if self.untrusted_links.handle(now, *ends, listed):
                # No broadcasts go out there from now on: a cable may lead back.
                self._throttle.failure(now)
        elif self.topology.is_relayed(now, probe.source, arrived, self._inhabited):
            both = f"{self.topology.port_name(probe.source)} → {self.topology.port_name(arrived)}"
            text = "a host hands on our discovery frames: they make no link; if it is a new cable, plug it in again"
            self.problems.report(now, Problem("relayed-probe", both, text))
        elif self.topology.handle_probe(now, probe, arrived, seconds):
            self.hosts.lose_port(arrived)
            self._schedule.at_once(now, arrived)
            self._schedule.measure(now, probe.source, arrived)
            self._throttle.improvement(now)

    def may_link(self, source: PortId, arrived: PortId) -> bool:
        """Return true if a discovery frame from one port at another may show a link."""
        return self.port_roles.may_link(self.settings.tenants, self.topology, source, arrived)

    def limited_name(self, port: PortId, tenant: int) -> str:
        """Return a port, or a tenant at a trunk, whose floods are limited, for people."""
        name = self.topology.port_name(port)
        return name if tenant == NOBODY else f"{name} ({self.settings.tenants.name(tenant)})"

    def limit_of(self, host: Host) -> Limited | None:
        """Return what a host's port may have flooded; None if it has no limit."""
        at_port = (each for each in self.limited.get(host.port.switch, ()) if each.port == host.port.port)
        return next((each for each in at_port if each.tenant in (NOBODY, host.tenant)), None)

    def find_host(self, word: str) -> Host | None:
        """Return the host with this MAC or IP address; with tenants it may be TENANT/ADDRESS.

        None where an address alone is in several tenants.
        """
        tenants = self.settings.tenants
        name, slash, address = word.partition("/")
        number = tenants.called(name) if slash and tenants else None
        if number is not None:
            host = self.hosts.find(address, (number,))
            # A MAC address is known whosever it is.
            return host if host is not None and host.tenant == number else None
        return self.hosts.find(word, tenants.numbers)

    def tenant_of(self, port: PortId, vid: int = 0) -> int:
        """Return the tenant of a port; nobody's where there are no tenants, or it is an end of a link.

        Of a trunk that of frames under a VID.
        """
        return network_state.tenant_at(port, self.settings, self.topology, vid)

    def _is_served(self, port: PortId, vid: int) -> bool:
        return network_state.is_served(port, self.settings, self.topology, vid)

    def trunk_at(self, port: PortId) -> dict[int, int]:
        """Return the tenants at a trunk by their VIDs; none if it is none."""
        return self.settings.tenants.trunk(*names_of(port, self.topology)) if self.settings.tenants else {}

    def _roles_of_ports(self, hello: Hello, known: list[Rule]) -> SwitchPorts:
        """Return the roles of a switch's ports by the configuration, before the switch is part of the network."""
        tenants, name = self.settings.tenants, self.topology.name(hello.dpid)
        ports = {port.number: port.name for port in hello.ports}
        linked = {end.port for end in rules.links_in(hello.dpid, known)}

        def tenant_of(port: int, vid: int = 0) -> int:
            return tenants.at(name, ports[port], port, vid) if port in ports else NOBODY

        def may_link(port: int) -> bool:
            if port not in ports or tenants.is_listed(name, ports[port], port):
                return False
            return tenants.is_end(name, ports[port], port) or (
                tenants.discovers_links
                and port in linked
                and self._port_names.get(hello.dpid, ports).get(port, ports[port]) == ports[port]
            )

        return SwitchPorts(tenants, self.compiler.digest, tenant_of, may_link)

    def _inhabited(self) -> set[PortId]:
        """Return the ports of hosts and edges."""
        return self.hosts.ports() | {edge.port for edge in self.edges}

    def _from_host(self, now: float, arrived: PortId, frame: bytes) -> None:
        vid = 0
        if self.trunk_at(arrived):
            vid, frame = untagged(frame)
        if self.topology.is_heard(arrived) or not self._is_served(arrived, vid):
            return
        mac = mac_text(frame[6:12])
        fresh = self.hosts.see(now, mac, arrived, vid)
        if fresh:
            self._throttle.change(now)
        told = address_claim(frame)
        if told is not None and told[0] == mac:
            former = self.hosts.learn_address(now, *told)
            if former is not None:
                self._ask(former, told[1])
        self._look_for_target(now, arrived, frame)
        self._out += self._arp_relay.handle(
            now, self.hosts, (arrived, vid), frame, fresh=fresh or self.is_urgent, is_up=self.topology.is_up
        )

    def _look_for_target(self, now: float, arrived: PortId, frame: bytes) -> None:
        """Have the switches of a packet's source and target know both, where not every switch knows every host."""
        source = self.hosts.known.get(mac_text(frame[6:12])) if not self.compiler.everywhere else None
        if source is None or source.port != arrived:
            return
        question = address_request(frame) if frame[0] & 1 else None
        known = self.hosts.by_address(question.wanted, source.tenant) if question is not None else None
        target = known if known is not None else self.hosts.known.get(mac_text(frame[:6]))
        if target is None or target.port.switch == source.port.switch or target.tenant != source.tenant:
            return
        for here, there in ((source, target), (target, source)):
            if self.conversations.begin(now, here.port.switch, there.mac):
                fresh = self.compiler.ask(here.port.switch, there.mac)
                if fresh and not self.updater.is_waiting:
                    for rule in fresh:
                        self.updater.add(here.port.switch, rule)
                else:
                    self._throttle.change(now)

    def _ask(self, host: Host, *addresses: str) -> None:
        """Ask a host, at its port, for its addresses."""
        for address in addresses if host.port.switch in self.topology.switches else ():
            self._out.append(to_host((host.port, host.vid), address_probe(address)))

    def _age_hosts(self, now: float) -> bool:
        """Ask hosts that have been silent, and forget those that are gone; return true if there were any."""
        due = self.hosts.poll_timeout()
        if due is None or now < due:
            return False
        down, unobserved = self.topology.unreachable(self.hosts.ports())
        gone = self.hosts.expire(now, down, unobserved)
        for host in self.hosts.due_probes(now):
            self._ask(host, *sorted(host.addresses))
        return gone

    def _port(self, now: float, dpid: int, message: PortStatus) -> None:
        port = PortId(dpid, message.port.number)
        if port.port > LAST_PORT:
            return
        names = self._port_names[dpid] if self.settings.tenants and not message.gone else {}
        if names.setdefault(port.port, message.port.name) != message.port.name:
            # The switch's rules for that number may be another tenant's, so it is admitted anew.
            switch = self.topology.switches[dpid]
            ports = tuple({**switch.ports, port.port: message.port}.values())
            self.handle_gone(now, dpid, "a port's number is another port's")
            self.handle_switch(now, Hello(dpid, ports, switch.address))
            return
        self.flapping_ports.handle_port(now, port, up=message.port.up and not message.gone)
        if self.topology.handle_port(now, dpid, message.port, gone=message.gone):
            self._throttle.failure(now)
        if message.port.up and not message.gone:
            self._schedule.at_once(now, port)
        else:
            self._schedule.remove_port(port)
            if message.gone:
                self.hosts.lose_port(port)
        self._throttle.improvement(now)

    def _rules(self, now: float, dpid: int, message: FlowStatsReply) -> None:
        if message.table == rules.INGRESS:
            self.acl.handle_counters(dpid, message.rules)
            return
        if message.table is not None:
            self.traffic.handle_rules(now, dpid, message.rules)
            has = {key for key in self.updater.installed.get(dpid, {}) if key[0] == message.table}
            if self.updater.idle and {each.rule.key for each in message.rules} != has:
                self.audit.soon(now, dpid)
            return
        self._listed(now, dpid, message)
        if not self.audit.answered(now, dpid, self.updater.changes, known=dpid in self.updater.installed):
            return
        known = [each.rule for each in message.rules]
        if not self.planned:
            self._expected_links |= rules.links_in(dpid, known)
        if dpid not in self.updater.installed:
            left = self._left.pop(dpid, None)
            # One rule, for discovery, was sent with the question.
            if left is not None and not any(rules.is_ours(rule) and rule.table != rules.INGRESS for rule in known):
                self._emptied[dpid] = left
            hosts = rules.hosts_in(dpid, known)
            self.hosts.adopt(now, [host for host in hosts if self._is_served(host.port, host.vid)])
            if not (self.planned and self.compiler.everywhere):
                for mac, _ in rules.remote_counters(message.rules):
                    self.conversations.begin(now, dpid, mac)
                    self.compiler.ask(dpid, mac)
            known, changes = rules.carry_over(known)
            for change in changes:
                self._tell(dpid, change)
            (self._throttle.change if self.planned else self._throttle.improvement)(now)
        restored = self.acl.restore(dpid, self.compiler.target, known)
        for each in restored:
            self._tell(dpid, each)
        gone = {each.key for each in restored if isinstance(each, DeleteRule)}
        known = [rule for rule in known if rule.key not in gone]
        groups = self._groups.pop(dpid, None)
        self.updater.handle_rules(now, dpid, known, groups.groups if groups is not None else None)

    def _listed(self, now: float, dpid: int, message: FlowStatsReply) -> None:
        """Take in hosts' signs of life, and rules of others, from a list of all of a switch's rules."""
        for mac, port, packets in rules.host_counters(dpid, message.rules):
            self.hosts.handle_packets(now, mac, port, packets)
        if not self.compiler.everywhere:
            silent = self.conversations.handle_counters(now, dpid, rules.remote_counters(message.rules))
            for mac in silent:
                self.compiler.dismiss(dpid, mac)
            if silent:
                self._throttle.rest(now)
        self.foreign[dpid] = message.foreign
        name = self.topology.name(dpid)
        strange = [each for each in message.rules if not rules.is_ours(each.rule) and not rules.is_old(each.rule)]
        if strange and dpid in self.updater.installed:
            text = f"{len(strange)} rules of somebody else's are removed; see what else controls this switch"
            self.problems.report(now, Problem("foreign-rule", name, text))
        own = rules.marker(self.nonce).match
        began = self.first_switch or 0.0
        # One that was added before we began may be our predecessor's.
        if any(each.rule.match != own and now - each.age > began for each in rules.markers_in(message.rules)):
            self._others[dpid] = now
            self.problems.withdraw("forged-probe")
        elif now - self._others.get(dpid, now) >= RETENTION:
            del self._others[dpid]

    def _see_whether_failed_open(self, now: float, dpid: int, age: float) -> None:
        """Name a switch that lost our rules while it was away, although its ports are older than that."""
        left = self._emptied.pop(dpid, None)
        if left is not None and age > now - left:
            text = "lost its rules while it had no controller, and did not restart: set fail_mode=secure there"
            self.problems.report(
                now, Problem("fail-open", self.topology.name(dpid), f"{text}, or it floods in loops")
            )

    def second_controllers(self) -> list[int]:
        """Return the switches that another controller controls as well."""
        return sorted(self._others)

    def _refused(self, now: float, dpid: int, message: Refused) -> None:
        if message.reason == "group-exists":
            # Its number says what is in it.
            return
        name = self.topology.name(dpid)
        # Where a group was refused before, those of all rules are unknown.
        if message.reason == "group-unknown" and dpid in self.failover:
            text = "has lost groups that it was given, so they are sent again; see who deletes them"
            self.problems.report(now, Problem("refused", name, text))
            is_new = self.updater.handle_lost_groups(now, dpid, message.rule)
            self.audit.soon(now, dpid)
            if not is_new:
                self._refused_failover(now, dpid, message.reason)
            self._throttle.failure(now)
            return
        is_by_group = message.reason in ("group-refused", "group-unknown")
        is_of_detour = message.rule is not None and rules.is_marked(message.rule.key) and message.reason != "slave"
        if is_by_group or is_of_detour:
            # A switch that does not know marked packets by their priority may lead them round.
            self._refused_failover(now, dpid, message.reason)
            if is_of_detour:
                self._refused_marks.add(dpid)
        if message.frame_bytes > TAGGED_HEADER_BYTES + SHORT_PACKET and is_probe(message.frame_start):
            # It counts as lost, as where a switch says nothing, and is one that measures: no other probe is as long.
            return
        if message.meter is not None:
            self._refused_meter(now, dpid, message.meter, message.reason)
            return
        if message.rule is None:
            if not is_by_group:
                text = f"the switch refuses what it is told: {message.reason}"
                self.problems.report(now, Problem("refused", name, text))
            return
        if message.rule.lease:
            if message.rule.meter is not None:
                # It may be that the switch does not have it.
                self._muting_shared.discard(dpid)
        elif message.reason != "slave" and (
            message.rule.meter is not None or (message.reason == "table-full" and self.limited.get(dpid))
        ):
            # A full table has room for packets to known hosts first.
            self._refused_limits(now, dpid, message.rule, message.reason)
            return
        if message.reason == "table-full" or (message.rule.table == rules.PATHS and not is_by_group):
            self.problems.full(now, dpid)
        self.refusals[dpid] = message.reason
        self.updater.handle_refused(now, dpid, message.rule)
        if is_by_group:
            self.updater.forgive(dpid)
        self._throttle.failure(now)

    def _refused_failover(self, now: float, dpid: int, reason: str) -> None:
        """Have a switch do without failover: rules that lead to no group take the place of those that do."""
        self._set_failover(now, dpid, has_groups=False)
        self.updater.forgive(dpid)
        text = f"refuses what it is to lead packets around a port that is down with, and does without: {reason}"
        self.problems.report(now, Problem("refused", self.topology.name(dpid), text))

    def _refused_meter(self, now: float, dpid: int, meter: SetMeter, reason: str) -> None:
        """Take in that a switch refused to make a meter, or to give it another rate."""
        if self.updater.handle_refused_rate(dpid, meter, reason):
            # It is a state, for as long as another rate is wanted.
            return
        if meter.is_new:
            self.updater.handle_refused_meter(dpid, meter.number)
        if reason == "slave":
            # Whoever leads there makes his own.
            return
        limited = self.limited_by(dpid, meter.number)
        rate = f"{meter.rate:,} {'kbit/s' if meter.by_bits else 'packets a second'}"
        if limited is not None and meter.is_new:
            where = self.limited_name(PortId(dpid, limited.port), limited.tenant)
            self._refused_limits(now, dpid, None, f"a meter of {rate} for {where}: {reason}")
        else:
            text = f"the switch refuses a meter of {rate}, number {meter.number}: {reason}"
            self.problems.report(now, Problem("refused", self.topology.name(dpid), text))

    def limited_by(self, dpid: int, number: int) -> Limited | None:
        """Return the port, or the tenant at a trunk, whose floods a meter limits."""
        return self._limited_by.get(dpid, {}).get(number)

    def refused_rates(self) -> dict[int, list[tuple[Limited, SetMeter | None, RefusedRate]]]:
        """Return the limits on floods that switches refused, each with the meter that is there in place of it."""
        found: dict[int, list[tuple[Limited, SetMeter | None, RefusedRate]]] = {}
        for dpid, refused in sorted(self.updater.refused_rates().items()):
            for number, each in sorted(refused.items()):
                limited, has = self.limited_by(dpid, number), self.updater.meter_at(dpid, number)
                wanted = self.updater.wanted_meters.get(dpid, {}).get(number)
                if limited is not None and wanted == each.wanted and wanted != has:
                    found.setdefault(dpid, []).append((limited, has, each))
        return found

    def _refused_limits(self, now: float, dpid: int, rule: Rule | None, reason: str) -> None:
        """Have a switch do without limits on floods."""
        if rule is not None:
            self.updater.handle_refused(now, dpid, rule)
        self.updater.forgive(dpid)
        if not self.meters.get(dpid, MeterFeatures(0)).highest_by_bits:
            # It is named for what it refused first.
            return
        self.meters[dpid] = replace(self.meters.get(dpid, MeterFeatures(0)), highest_by_bits=0)
        text = f"does not take all rules with those that limit floods, and does without these: {reason}"
        self.problems.report(now, Problem("refused", self.topology.name(dpid), text))
        self._throttle.failure(now)

    # Timers.

    def _discover(self, now: float) -> None:
        self.topology.interval = self._schedule.interval
        ports, switches = self._schedule.due(now)
        for port in ports:
            self._send_probe(now, Kind.LINK, port)
            self.topology.sent(port)
        for dpid in switches:
            self._tell(dpid, Echo(round(now * 1e9).to_bytes(8, "big")))

    def _send_probe(self, now: float, kind: Kind, source: PortId, tag: int = 0, packet_bytes: int = 0) -> None:
        self._nonce += 1
        frame = seal(Probe(kind, source, tag, self._nonce, round(now * 1e9), packet_bytes), self.settings.key)
        out = (Reserved.TABLE,) if kind in (Kind.PATH, Kind.TRAIN) else (source.port,)
        self._tell(source.switch, PacketOut(out, frame))

    def _probe(self, now: float) -> None:
        tags, names = self.path_monitor.due(now)
        known = {path.tag: path for pair in self.tables.pairs.values() for path in pair.paths}
        firsts = {tag: path.first for tag, path in known.items()}
        for tag in tags:
            if tag in firsts and firsts[tag] in self.topology.switches:
                self._send_probe(now, Kind.PATH, PortId(firsts[tag], 0), tag)
        train = self.probe_trains.poll_train(
            now, lambda tag: firsts.get(tag) in self.topology.switches and self._is_idle(now, tag)
        )
        while (found := self.probe_trains.poll_capacity()) is not None:
            if self.path_capacity.handle_measured(now, *found):
                self._throttle.load(now)
        if train is not None:
            tag, size = train
            self.path_monitor.handle_own_frames(now, self.path_monitor.hops_of(tag))
            for step in known[tag].steps:
                self.traffic.handle_measuring(step, size.total_bytes)
            packet = size.frame_bytes - TAGGED_HEADER_BYTES
            for _ in range(size.frames):
                self._send_probe(now, Kind.TRAIN, PortId(firsts[tag], 0), tag, packet)
        ports = {edge.name: edge.port for edge in self.edges}
        for name in names:
            if name in ports and ports[name].switch in self.topology.switches:
                self._send_probe(now, Kind.EDGE, ports[name])

    def _measure_sizes(self, now: float) -> None:
        """Send what is due to find the largest packets that links carry."""
        # While a large network is found, its links change with every frame.
        is_due = now - self._sized_at >= SIZED_INTERVAL and not self.is_urgent
        if is_due and (links := self.topology.links()) is not self._sized:
            self._sized, self._sized_at = links, now
            self.frame_sizes.set_links(now, {(link.source, link.target): link.first for link in links})
        tried = self.frame_sizes.poll_try(now, self._line_of)
        if tried is not None:
            hops = [(tried.source, target) for target in self.topology.neighbours().get(tried.source, ())]
            self.path_monitor.handle_own_frames(now, hops)
            for size in (SHORT_PACKET, tried.packet_bytes):
                probe = Probe(Kind.PADDED, tried.source, 0, tried.number, round(now * 1e9), size)
                frame = seal(probe, self.settings.key)
                self.traffic.handle_measuring(tried.source, len(frame))
                self._tell(tried.source.switch, PacketOut((tried.source.port,), frame))

    def _handle_padded(self, now: float, hop: Hop, probe: Probe, seconds: float) -> None:
        link = self.topology.heard.get(hop)
        if link is None:
            # It came by another way, such as over a host.
            return
        delay = seconds - (link.whole.get(now) or 0.0)
        if probe.packet_bytes == SHORT_PACKET:
            self.frame_sizes.handle_short(hop, probe.nonce, delay)
        else:
            self.frame_sizes.handle_long(now, hop, probe.nonce, probe.packet_bytes, delay)

    def _line_of(self, hop: Hop) -> Line | None:
        link = self.topology.heard.get(hop)
        if link is None or any(end.switch not in self.topology.switches for end in hop):
            return None
        return Line(self.traffic.capacity_of(link, self.topology), busy=self.traffic.is_busy(link, self.topology))

    def unlike_sizes(self) -> tuple[dict[int, int], dict[Hop, int]]:
        """Return the switches that seem to have a limit of their own, and links that carry less than a pair's others.

        With each is the limit, or what those others carry, bytes. Where an operator has said what hosts send, no
        links are compared.
        """
        depends = self.frame_sizes.changes, self.tables.generation
        if self._compared[0] != depends:
            known, links = self.frame_sizes.known, dict[Hop, int]()
            if self.settings.frame_bytes is None:
                split = (pair for pair in self.tables.pairs.values() if len(pair.paths) > 1)
                pairs = itertools.islice(split, MAX_COMPARED_PAIRS)
                paths = [[path.hops for path in pair.selection.paths] for pair in pairs]
                links = uneven(known, paths, self.frame_sizes.at_least)
            self._compared = depends, limited_switches(known), links
        return self._compared[1:]

    def _is_idle(self, now: float, tag: int) -> bool:
        """Return true if a path works and carries next to nothing."""
        is_empty = self.path_monitor.is_answering(now, tag) and not self.path_monitor.has_queue(tag)
        return is_empty and self.path_rates.get(now, tag) < IDLE_RATE

    def _ask_links(self, now: float, tags: Collection[int]) -> None:
        """Check every link of dead paths."""
        for pair in self.tables.pairs.values():
            for path in pair.paths:
                if path.tag in tags:
                    for step in path.steps[:-1]:
                        self._schedule.at_once(now, step)
                        self.topology.check_link(now, step)

    def _count(self, now: float) -> None:
        """Evaluate the last period's counters, and request the next ones."""
        # In a large network the replies alone would keep the controller busy.
        self._count_at = now + max(COUNTER_PERIOD, len(self.topology.switches) / 100)
        self.traffic.observe(now, self.topology.links())
        for dpid in self.topology.switches:
            self._tell(dpid, PortStatsRequest())
        on_paths = {step.switch for pair in self.tables.pairs.values() for path in pair.paths for step in path.steps}
        for dpid in sorted(on_paths & self.topology.switches.keys()):
            self._tell(dpid, FlowStatsRequest(rules.PATHS))
        for dpid in self.updater.wanted_meters.keys() & self.topology.switches.keys():
            self._tell(dpid, MeterCountersRequest())
        for dpid in self.acl.poll_counted(MAX_COUNTED_RULES):
            self._tell(dpid, FlowStatsRequest(rules.INGRESS))
        if self.edges:
            self._throttle.load(now)
            self._examine_at = self._examine_at if self._examine_at is not None else now
        # Tagged packets pass by the rules that count hosts' packets.
        sending = {pair.source.port for pair in self.tables.pairs.values() if self._is_sending(now, pair)}
        for host in [host for port in sending for host in self.hosts.at(port)]:
            self.hosts.hear(now, host.mac)
        self.poller.poll_all(now)

    def _is_sending(self, now: float, pair: Pair) -> bool:
        """Return true if hosts behind a pair's source send to those behind its target."""
        tags = [path.tag for path in pair.paths]
        back = self.tables.pairs.get((pair.target.name, pair.source.name))
        both = tags + [path.tag for path in back.paths] if back else tags
        if any(self.path_monitor.is_watched(now, tag) for tag in both):
            # Switches count the edges' own probes and replies too, edges do not.
            return self.path_monitor.has_brought(now, tags)
        # Our own probes do not count at a path's last switch.
        return any(self.traffic.tagged.get((path.last, path.tag)) for path in pair.paths)

    def _examine(self, now: float) -> None:
        """Examine the last period of the pairs that send, and request the counters of the next one."""
        pairs = [
            pair
            for pair in self.tables.pairs.values()
            if len(pair.paths) > 1 and self.path_monitor.is_used(now, [path.tag for path in pair.paths])
        ]
        self._examine_at = now + max(EXAMINE_PERIOD, len(pairs) / MAX_EXAMINED_PER_SECOND)
        changed = False
        for pair in pairs:
            queues = {path.tag: self.path_monitor.take_least_queue(path.tag) for path in pair.paths}
            unknown = [
                PathLoad(chosen.hops, self.path_rates.get(now, path.tag), queues[path.tag])
                for path, chosen in zip(pair.paths, pair.selection.paths, strict=True)
                if math.isinf(chosen.ceiling)
            ]
            changed |= self.path_capacity.handle_period(now, unknown)
            self._forecast(now, pair, queues)
        self.path_capacity.expire(now)
        self.poller.poll_pairs(now, pairs)
        if changed:
            self._throttle.load(now)

    def _forecast(self, now: float, pair: Pair, queues: Mapping[int, float | None]) -> None:
        """Tell a pair's source what to expect of its paths, unless it should walk its slot table."""
        if self.settings.scheduler is Scheduler.WRR:
            return
        samples = []
        for path, chosen in zip(pair.paths, pair.selection.paths, strict=True):
            learned = self.path_capacity.limits.get(chosen.hops, math.inf)
            samples.append(
                PathSample(
                    path.tag,
                    latency=chosen.latency,
                    free=min(chosen.capacity, learned),
                    line=chosen.ceiling if math.isfinite(chosen.ceiling) else learned,
                    rate=self.path_rates.get(now, path.tag),
                    queue=queues.get(path.tag),
                )
            )
        self.forecasts.handle_period(pair.source.name, samples)

    def _settled(self, now: float) -> bool:
        if self.planned or self.first_switch is None:
            return True
        return now >= self._first_plan(self.first_switch)

    def _first_plan(self, began: float) -> float:
        """Return the time of the first plan if nothing new is found until then."""
        at = self.topology.changed + SETTLE_TIME
        if self._is_incomplete():
            at = max(at, began + RECONNECT_TIME)
        return min(at, began + MAX_FIRST_PLAN_DELAY)

    def _is_incomplete(self) -> bool:
        """Return true while a switch has not listed its rules, or a link of the previous controller is missing."""
        switches = self.topology.switches
        return any(dpid not in self.updater.installed for dpid in switches) or any(
            port.switch in switches and port.port in switches[port.switch].up() and not self.topology.is_heard(port)
            for port in self._expected_links
        )

    # Planning.

    def _begin_plan(self, now: float) -> None:
        began = self._stopwatch()
        self.edges = network_state.resolve_edges(self.settings, self.topology)
        self._place_hosts(now)
        self.traffic.configured = network_state.configured_capacities(self.settings, self.policies, self.topology)
        is_review = self._throttle.calm or now >= self._review_at
        if is_review:
            # Those that wait already come first, or the last ones never would while something flaps.
            self._review = tuple(dict.fromkeys((*self._review, *self.plan.trees)))
            work = len(self.plan.trees) * len(self.graph.arcs)
            self._review_at = now + max(REVIEW_INTERVAL, work / MAX_REVIEWED_PER_SECOND)
        self._is_work_urgent = self._throttle.urgent
        # To split the traffic of all pairs takes seconds in a large network: what failed, or a rest, goes first.
        is_first = self._is_work_urgent or not (self._throttle.calm or self._throttle.loaded)
        self._keeps_pairs = is_first and self._split_policies is self.policies
        self._throttle.plan_begun()
        if self._keeps_pairs and self._is_work_urgent and self.plan.pairs:
            self._throttle.load(now)
        # The plan that was to come once ports are settled may be this one, made sooner for something else.
        settled_in = network_state.next_settled(now, self.topology)
        if settled_in is not None:
            self._throttle.rest(now, settled_in)
        # New hosts alone do not depend on load and latencies.
        is_fresh = is_review or bool(self.edges) or self.topology.changed >= self._graph_at
        self._work = self._make_plan(now, with_graph=is_fresh)
        self._worked = self._stopwatch() - began
        self._go_on(now, self._work)

    def _make_plan(self, now: float, *, with_graph: bool) -> Generator[None, None, MadePlan]:
        """Make a plan in pieces, `with_graph` of what links carry by now; return it with what it is made of."""
        if with_graph:
            arcs, self._graph_at = [], now
            for arc in self.traffic.arcs(now, self.topology):
                arcs.append(arc)
                yield
            # The arcs may miss a change since the first of them was made.
            is_old = self.topology.changed > now
            graph = self.traffic.graph(now, self.topology) if is_old else graph_of(arcs, self.topology)
            self.graph = network_state.permitted(graph, self)
        most = sys.maxsize if not self.planned else max(1, MAX_TREE_ARCS // max(1, len(self.graph.arcs)))
        work = planner.Work(self.plan, network_state.collect(now, self, self._review, most, self._may_keep_pairs))
        while (plan := work.poll()) is None:
            yield
        return plan, work.state

    def _may_keep_pairs(self) -> bool:
        """Return true if pairs that work may stay as they are in the plan that is being made."""
        return self._keeps_pairs or self._throttle.urgent

    def _go_on(self, now: float, pieces: Generator[None, None, MadePlan]) -> None:
        """Work on the plan for a while, and follow it once it is made."""
        began, took, made = self._stopwatch(), 0.0, self._made
        longest = MAX_URGENT_PIECE if self.is_urgent else MAX_PIECE
        while made is None and took < longest:
            try:
                next(pieces)
            except StopIteration as done:
                made = done.value
            except BaseException:
                # Nothing more would come of it.
                self._drop_work()
                self._throttle.load(now, ERROR_RETRY)
                raise
            took = self._stopwatch() - began
        if made is None or took >= longest / 2:
            # To follow it takes a turn of its own.
            self._made = made
            self._worked += took
            self._work_at = now
            return
        self._end_work()
        self._follow_plan(now, *made, began)

    def _end_work(self) -> None:
        self._work = self._work_at = self._made = None
        self._is_work_urgent = False

    def _drop_work(self) -> None:
        """Do without the plan that is being made, and without its graph."""
        self._end_work()
        self._graph_at = float("-inf")

    def _follow_plan(self, now: float, plan: Plan, state: planner.NetworkState, began: float) -> None:
        """Tell switches of another plan, whose last piece began at this time of the stopwatch."""
        before, self.plan = self.plan, plan
        self._review = tuple(root for root in self.plan.left if root in self.plan.trees)
        if not plan.has_kept_pairs:
            self._split_policies = state.policies
        is_whole = not plan.left and self._split_policies is state.policies
        self._policies_planned = is_whole and state.policies is self.policies
        self.planned = True
        self._expected_links.clear()
        self._failover_planned = state.failover
        self._limit_floods()
        self._follow(now)
        took = self._stopwatch() - began
        self.planning = [*self.planning[-99:], self._worked + took]
        # All else had its turns between the pieces before.
        self._throttle.plan_made(now, took)
        if any(
            (tree.repairs or tree.detour is not known.detour) and known is not tree
            for root, tree in self.plan.trees.items()
            if (known := before.trees.get(root, tree)).tag == tree.tag
        ):
            # There may be a better one, which takes longer.
            self._throttle.improvement(now)

    def _limit_floods(self) -> None:
        """Take over from the plan what ports may have flooded; of switches alone of which something has changed."""
        plan, before, self._flood_limits = self.plan, self._flood_limits, {}
        limit, configured = self.settings.flood.limit, self.traffic.configured
        rates = self._flood_rates.get(limit, plan.floods, self.topology, configured)
        for dpid, switch in self.topology.switches.items() if not self.settings.flood.is_off else ():
            if dpid not in self.meters:
                continue
            of_plan = (plan.internal.get(dpid), plan.trunks.get(dpid), plan.port_tenants.get(dpid))
            made_of = (tuple(switch.ports.values()), self.meters[dpid], of_plan, rates, self.settings.flood.ports)
            if dpid not in before or before[dpid][0] != made_of:
                limits = network_state.flood_limits(self, plan, dpid, rates)
                trunks, links = plan.trunks.get(dpid, {}), plan.internal.get(dpid, ())
                made = flood_limit.of_switch(limits, trunks, links, self.meters[dpid].highest_by_bits)
                self.flood_drops.keep(dpid, made.meters.keys())
                self._flood_limits[dpid] = made_of, made
            else:
                self._flood_limits[dpid] = before[dpid]
        known = {dpid: made for dpid, (_, made) in sorted(self._flood_limits.items())}
        self.limited = {dpid: made.ports for dpid, made in known.items() if made.ports}
        self._limited_by = {
            dpid: {number: each for each in ports for number in (each.meter, each.address_meter)}
            for dpid, ports in self.limited.items()
        }
        self.unlimited = {dpid: made.missing for dpid, made in known.items() if made.missing}
        self.updater.set_meters({dpid: made.meters for dpid, made in known.items() if made.ports})

    @property
    def _has_rest(self) -> bool:
        """True if the last plan is followed in part: the rest of it needs no other one."""
        is_behind = self.compiler.is_behind or self.acl.is_behind
        return self.planned and not self._is_renumbered and (is_behind or not self._is_first_followed)

    @property
    def _is_rest_urgent(self) -> bool:
        """True if that rest waits for no switch: what lost a link, and the first plan, of which none was told yet."""
        is_urgent = self.compiler.is_repairing or not self._is_first_followed
        return self.planned and not self._is_renumbered and is_urgent

    def _floods(self) -> dict[int, Flood]:
        """Return each tenant's flood whose rules switches have or get before all else; none before the first plan."""
        if self._is_renumbered or not self._is_first_followed:
            return {}
        found = {tenant: self.compiler.flood_of(tenant) for tenant in self.settings.tenants.numbers}
        return {tenant: flood for tenant, flood in found.items() if flood is not None}

    def _follow(self, now: float) -> None:
        """Change rules to those of the plan, or as many as may be in one turn."""
        switches = list(self.topology.switches)
        is_first = not self._is_first_followed
        fresh = [switch for switch in switches if switch not in self.compiler.target] if is_first else []
        if fresh:
            switches = [switch for switch in switches if switch in self.compiler.target] + fresh[:MAX_FIRST_SWITCHES]
        everywhere = self.compiler.everywhere
        # As long as some switches may have groups, marked packets may come to any.
        drop_marked = {*switches} - self._refused_marks if self._drops_marked else ()
        changed = self.compiler.update(
            self.plan,
            self.hosts.known,
            self.edges,
            switches,
            # Rules of a port whose number is another port's by now may not wait.
            most=sys.maxsize if self._is_renumbered else MAX_HOST_RULES,
            is_told=not is_first,
            failover=self._failover_planned,
            drop_marked=drop_marked,
            limited=self.limited,
            host_changes=self.hosts.changes,
        )
        if self.compiler.everywhere != everywhere:
            self.conversations.clear()
            for switch, mac in self.compiler.asked():
                self.conversations.begin(now, switch, mac)
        self._followed_at = now
        self._is_renumbered = False
        if is_first:
            # Those of some alone could lead packets to where no rule is for them yet.
            is_whole = len(fresh) <= MAX_FIRST_SWITCHES and not self.compiler.is_behind
            if is_whole:
                self._follow_acl(changed, is_told=False)
            self._is_first_followed = is_whole and not self.acl.has_unlisted
        else:
            self._follow_acl(changed)
        self.updater.doubtful |= self.compiler.untold
        if self._is_first_followed:
            self.updater.set_target(now, self.compiler.target, None if is_first else changed)
            self.audit.plan(now, switches)
        if self._has_rest:
            return
        if self.plan.left:
            # Packets to hosts that wait for their rules are flooded meanwhile: ARP need not wait for these.
            self._throttle.rest(now)
        elif self.plan.tagless or self.plan.is_flood_old:
            # Tags become free when rules are deleted.
            self._throttle.rest(now, TAG_RETRY)

    def _follow_acl(self, changed: dict[int, set[RuleKey]], *, is_told: bool = True) -> None:
        """Have switches follow the access control list before all else, and add to what is changed.

        `is_told` if they are told of all that is changed after that.
        """
        # Without a list the ports of switches alone matter, for the list that may come.
        ports = (self.plan.internal, self.plan.trunks, self.edges, self.topology.revision)
        if ports[0] is self._acl_ports[0] and ports == self._acl_ports and self.acl.is_nowhere(self.compiler.target):
            return
        self._acl_ports = ports
        change = self.acl.follow(
            self.compiler.target,
            self.updater.installed,
            network_state.surroundings(self),
            most=MAX_LIST_RULES,
            is_told=is_told,
            has_whole_list=self.updater.has_whole_list,
        )
        for dpid, rule in change.added:
            self.updater.add(dpid, rule)
        self.updater.confirm(dict.fromkeys(dpid for dpid, _ in change.added))
        # Rules that are deleted follow those that take their place.
        self._out += self.updater.poll_messages()
        if change.added or change.deleted:
            # A list of all rules that is under way is one from before.
            self.updater.changes += 1
        for dpid in change.counted:
            self._tell(dpid, FlowStatsRequest(rules.INGRESS))
        for dpid, key in change.deleted:
            self.updater.installed[dpid].pop(key, None)
            self._tell(dpid, DeleteRule(key))
        for dpid, keys in change.keys.items():
            changed.setdefault(dpid, set()).update(keys)

    def _replace_doubtful(self, now: float) -> None:
        """Have trees planned anew that a switch may not have followed."""
        if any(tree.tag in self.updater.doubtful for tree in self.plan.trees.values()):
            self._throttle.failure(now)

    def _advance(self, now: float) -> None:
        """Advance what depends on the updater's step: edges' tables, and held ARP requests."""
        self._distribute(now)
        if self._policies_planned and self.updater.idle and not self._has_rest:
            self.policies_in_place = True
        # Tables that were distributed before the present update began do not concern it.
        if self.updater.step is not Step.PREPARE and (affected := self.distributor.poll_affected()) is not None:
            self.updater.handle_published(now, affected)
        if self._arp_relay.is_holding:
            in_place = self.updater.step in (Step.IDLE, Step.DRAIN) and not self.is_urgent
            edges = [edge.port for edge in self.edges]
            floods = self._floods()
            switches = self.topology.switches
            self._out += self._arp_relay.release(
                now, floods, self.plan, self.tenant_of, edges, in_place=in_place, switches=switches
            )

    def _distribute(self, now: float) -> None:
        """Distribute tables and probe the new paths once all new tags' rules are in place."""
        if not self.updater.poll_publish():
            return
        self.distributor.handle_plan(now, self.plan.pairs)
        followed = [
            (path, chosen.hops)
            for pair in self.tables.pairs.values()
            for path, chosen in zip(pair.paths, pair.selection.paths, strict=True)
        ]
        probed = {edge.name for edge in self.settings.edges if edge.probe}
        # Packets in queues travel longer than the latencies say.
        self.updater.drain = self.settings.drain + self.path_monitor.longest()
        self.path_monitor.set_targets(now, followed, [edge for edge in self.edges if edge.name in probed])
        known = (*self.tables.pairs.values(), *self.tables.egress.values())
        tags = {path.tag for pair in known for path in pair.paths}
        self.forecasts.keep(tags)
        self.probe_trains.set_paths(
            {
                path.tag: chosen.hops
                for pair in self.tables.pairs.values()
                for path, chosen in zip(pair.paths, pair.selection.paths, strict=True)
                if len(pair.paths) > 1 and math.isinf(chosen.ceiling) and chosen.hops not in self.path_capacity.limits
            }
        )
        self.path_rates.keep(tags)
        for pair in self.tables.pairs.values():
            own = [path.tag for path in pair.paths]
            # Those that send are examined anyway, with the queues of their paths.
            if not self.path_monitor.is_used(now, own) or not self.forecasts.known.keys() >= set(own):
                self._forecast(now, pair, {})
