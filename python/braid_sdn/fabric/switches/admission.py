"""Admits switches where tenants are kept apart: none is part of the network with a rule that could let across.

A switch that connects may have rules of another configuration, by which a tag or a port is another tenant's. So its
rules are listed first; those that do not say what the configuration says are deleted, leased ones as well; and only
once it has confirmed that, discovery begins there. Rules by which packets come from other switches or leave for them
stay only with the configuration's digest. So packets pass between two switches only after both were admitted by the
same configuration, however long one of them was away, and whatever it does by the rules that it still has. Rules of
the same configuration pass, whoever sent them and however long ago: nothing is lost where nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from braid_sdn.fabric.switches import rules
from braid_sdn.fabric.switches.rules import DELIVERY, DESTINATIONS, PATHS, SOURCES
from braid_sdn.fabric.tenants import DPID_BITS, METADATA_MASK, NOBODY, TAGS, Tenants, metadata_of
from braid_sdn.openflow.messages import (
    LAST_PORT,
    TAGGED,
    Barrier,
    BarrierReply,
    DeleteRule,
    FlowStatsReply,
    FlowStatsRequest,
    FromSwitch,
    Hello,
    Malformed,
    Match,
    Output,
    PopTag,
    PortStatus,
    PushTag,
    Reserved,
    Rule,
    ToGroup,
    ToSwitch,
)

#: Seconds after which a switch that is not admitted yet is named.
PATIENCE = 2.0
#: Lists of rules that are asked of a switch which sends none that can be read; it may connect anew after that.
MAX_ASKED = 5


@dataclass(frozen=True)
class SwitchPorts:
    """The roles of a switch's ports."""

    tenants: Tenants
    #: That of the configuration.
    digest: int
    #: The tenant of a port and, if it is a trunk, of a VID there.
    tenant_of: Callable[[int, int], int]
    #: True for a port that may be an end of a link.
    may_link: Callable[[int], bool]

    def fits(self, rule: Rule) -> bool:
        """Return true if a rule cannot lead a packet from one tenant to another."""
        if not (rules.is_ours(rule) and rules.has_digest(rule, self.digest)):
            return False
        match rule.table:
            case rules.INGRESS:
                return self._fits_ingress(rule)
            case rules.SOURCES:
                return self._fits_source(rule)
            case rules.DESTINATIONS | rules.DELIVERY:
                return self._fits_target(rule)
            case rules.TREES:
                return self._fits_tree(rule)
            case rules.PATHS:
                return self._fits_path(rule)
        return False

    def _fits_ingress(self, rule: Rule) -> bool:
        port = rule.match.in_port
        if any(each != rules.TO_CONTROLLER for each in rule.actions) or rule.metadata is not None:
            return False
        if rule.goto in (None, SOURCES) or port == Reserved.CONTROLLER:
            return True
        return rule.goto == PATHS and port is not None and self.may_link(port)

    def _fits_source(self, rule: Rule) -> bool:
        port, tags = rule.match.in_port, [each.vlan for each in rule.actions if isinstance(each, PushTag)]
        if any(not isinstance(each, PushTag | PopTag) and each != rules.TO_CONTROLLER for each in rule.actions):
            return False
        # A VID of a trunk comes off, and the header within it must not be taken for a tag.
        vid = rules.vid_of(rule.match) if PopTag() in rule.actions else 0
        if rule.actions.count(PopTag()) != bool(vid) or (vid and tags and rule.actions[-1] == PopTag()):
            return False
        tenant = self.tenant_of(port, vid) if port is not None and port <= LAST_PORT else NOBODY
        if rule.goto == DESTINATIONS:
            return not tags and (rule.metadata is None or (bool(tenant) and rule.metadata == metadata_of(tenant)))
        if rule.goto is None:
            return not tags
        if rule.goto != PATHS or not tenant:
            return False
        # Tagged here, as by a port that is muted, or before, as by an edge.
        passed = tags or [each for each in _vids(rule.match) if each in TAGS and not vid]
        return bool(passed) and all(self.tenants.of_tag(each) == tenant for each in passed)

    def _fits_target(self, rule: Rule) -> bool:
        """Return true for a rule that delivers to a port of the tenant that it matches, or leads on within it."""
        known, vid = rule.match.metadata, 0
        for action in rule.actions:
            match action:
                case Output(Reserved.CONTROLLER):
                    pass
                case Output(port):
                    tenant = self.tenant_of(port, vid)
                    if not tenant or known != metadata_of(tenant):
                        return False
                case PushTag(vlan) if rule.goto is None:
                    vid = vlan
                case PushTag(vlan):
                    if rule.table != DESTINATIONS or known != metadata_of(self.tenants.of_tag(vlan)):
                        return False
                case _:
                    return False
        if rule.metadata is not None:
            return isinstance(known, int) and rule.metadata >> DPID_BITS == known >> DPID_BITS
        return True

    def _fits_tree(self, rule: Rule) -> bool:
        known = rule.match.metadata
        if len(rule.actions) != 1 or not isinstance(rule.actions[0], PushTag):
            return not rule.actions and rule.goto is None
        tenant = self.tenants.of_tag(rule.actions[0].vlan)
        if isinstance(known, tuple):
            return known == (metadata_of(tenant), METADATA_MASK)
        return known is not None and known >> DPID_BITS == tenant

    def _fits_path(self, rule: Rule) -> bool:
        if not isinstance(rule.match.vlan, int) or rule.match.vlan not in TAGS:
            return not rule.actions and rule.goto is None
        tenant, popped, vid = self.tenants.of_tag(rule.match.vlan), False, 0
        for action in rule.actions:
            match action:
                case PopTag():
                    popped, vid = True, 0
                case PushTag(vlan) if popped and rule.goto is None:
                    vid = vlan
                case Output(Reserved.CONTROLLER):
                    pass
                case Output(port):
                    if self.tenant_of(port, vid) != tenant and (popped or not self.may_link(port)):
                        return False
                case ToGroup(group):
                    buckets = rules.buckets_of(group)
                    if popped or buckets is None or not all(self.may_link(each.watch_port) for each in buckets):
                        return False
                case _:
                    return False
        if rule.goto is None:
            return True
        return rule.goto == DELIVERY and popped and rule.metadata == metadata_of(tenant)


def _vids(match: Match) -> Iterable[int]:
    if isinstance(match.vlan, tuple):
        vid, mask = match.vlan
        return (each for each in range(1 << 12) if each & mask == vid)
    return [match.vlan] if match.vlan is not None and match.vlan != TAGGED else []


@dataclass
class _Applicant:
    hello: Hello
    since: float
    #: Token of a barrier before the list is asked for: until it is answered, lists are of the controller before.
    first: int
    asked: int = 0
    #: Token of the barrier behind what is deleted; None until the rules are listed.
    token: int | None = None

    @property
    def awaited(self) -> str:
        """Its next answer, as what happens once it has come."""
        if self.asked == 0:
            return "first barrier is answered"
        return "rules are listed" if self.token is None else "deletion of rules of another configuration is confirmed"


@dataclass
class Admission:
    """Switches that are not part of the network yet."""

    #: The roles of ports of a switch, of which the rules at it are given as well.
    ports_of: Callable[[Hello, list[Rule]], SwitchPorts]
    new_barrier: Callable[[], Barrier]
    applicants: dict[int, _Applicant] = field(default_factory=dict)

    def handle_switch(self, now: float, hello: Hello) -> Iterator[ToSwitch]:
        """Take in a switch that has connected; yield messages to it."""
        barrier = self.new_barrier()
        self.applicants[hello.dpid] = _Applicant(hello, now, barrier.token)
        yield barrier

    def handle_gone(self, dpid: int) -> None:
        """Take in that a switch's connection ended."""
        self.applicants.pop(dpid, None)

    def handle(self, dpid: int, message: FromSwitch) -> Iterator[ToSwitch]:
        """Take in a message of such a switch; yield messages to it. `poll_admitted` says when it is done."""
        applicant = self.applicants[dpid]
        match message:
            case BarrierReply(token) if applicant.asked == 0 and token == applicant.first:
                applicant.asked = 1
                yield FlowStatsRequest()
            case PortStatus(port, gone):
                others = tuple(each for each in applicant.hello.ports if each.number != port.number)
                applicant.hello = replace(applicant.hello, ports=others if gone else (*others, port))
                if applicant.token is not None:
                    # The port may have another role than it had when its rules were looked at.
                    applicant.token = None
                    yield FlowStatsRequest()
            case FlowStatsReply(table=None) if applicant.asked and applicant.token is None:
                known = [each.rule for each in message.rules]
                ports = self.ports_of(applicant.hello, known)
                barrier = self.new_barrier()
                applicant.token = barrier.token
                yield from (DeleteRule(rule.key) for rule in known if not ports.fits(rule))
                yield barrier
            case Malformed() if applicant.token is None and 0 < applicant.asked < MAX_ASKED:
                applicant.asked += 1
                yield FlowStatsRequest()
            case _:
                pass

    def waiting(self) -> dict[int, str]:
        """Return the switches that wait, and for what."""
        return {dpid: each.awaited for dpid, each in sorted(self.applicants.items())}

    def waiting_for_long(self, now: float) -> dict[int, str]:
        """Return those of them that have been waiting for long."""
        return {dpid: what for dpid, what in self.waiting().items() if now - self.applicants[dpid].since >= PATIENCE}

    def poll_admitted(self, dpid: int, message: FromSwitch) -> Hello | None:
        """Return the switch if this is its word that nothing is left of other configurations."""
        applicant = self.applicants.get(dpid)
        if applicant is None or not isinstance(message, BarrierReply) or message.token != applicant.token:
            return None
        return self.applicants.pop(dpid).hello
