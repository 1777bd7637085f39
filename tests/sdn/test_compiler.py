"""Rules that follow plans by differences: as if made anew, and in an order in which no packet goes round."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from braid_lab.fabric.shapes import generated
from braid_sdn.fabric.model import Arc, Graph, PortId
from braid_sdn.fabric.plan.plan import Edge, Host, Plan
from braid_sdn.fabric.plan.planner import NetworkState, make
from braid_sdn.fabric.plan.policies import Policies
from braid_sdn.fabric.switches import compiler
from braid_sdn.fabric.switches.compiler import CHANGED_TREE_COST, Compiler
from braid_sdn.fabric.switches.rules import (
    DELIVERY,
    DESTINATIONS,
    INGRESS,
    PATHS,
    SINGLE_WAY,
    SOURCES,
    TREES,
    Rules,
    buckets_of,
    groups_of,
    no_detour,
    tag_of,
)
from braid_sdn.fabric.switches.updater import BARRIER_TIMEOUT, RuleUpdater
from braid_sdn.fabric.tenants import NOBODY
from braid_sdn.openflow.messages import (
    AddRule,
    Barrier,
    DeleteGroup,
    DeleteRule,
    Match,
    Output,
    PushTag,
    Rule,
    SetFailoverGroup,
    ToSwitch,
)

from .virtual import graph_of, mac

SWITCHES = 8
#: A port at which no link is.
HOST_PORT = 99


class Fabric:
    """A plan and its rules, with a network that changes."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.whole = graph_of(generated(SWITCHES, seed=seed, more=1.0))
        self.lost: set[frozenset[PortId]] = set()
        self.hosts: dict[str, Host] = {}
        self.plan = Plan()
        self.compiler = Compiler()
        self.places: dict[str, tuple[PortId, int, int]] = {}
        self.host_moves = 0
        self.switches = list(range(1, SWITCHES + 1))
        self.edges = (Edge("ha", PortId(1, 50)), Edge("hb", PortId(5, 50)))
        #: Switches with fast failover groups.
        self.failover = frozenset(self.switches)
        #: True if some may have any.
        self.has_failover = True
        #: True if switches that are not connected go on by the rules that they have.
        self.goes_on_alone = False

    def graph(self) -> Graph:
        arcs = [arc for arc in self.whole.arcs if frozenset((arc.source, arc.target)) not in self.lost]
        return Graph.of(arcs, self.whole.switches)

    def change(self) -> None:
        """Have a wire, a host or a switch's connection come, go or move."""
        what = self.chance.randrange(5)
        number = self.chance.randrange(6)
        if what == 0:
            arc = self.chance.choice(self.whole.arcs)
            self.lost ^= {frozenset((arc.source, arc.target))}
        elif what == 1:
            self.hosts.pop(mac(number), None)
        elif what == 2:
            switch = self.chance.choice(self.switches)
            self.hosts[mac(number)] = Host(mac(number), PortId(switch, HOST_PORT + self.chance.randrange(2)))
        elif what == 3:
            self.failover ^= {self.chance.choice(self.switches)}
        else:
            one = self.chance.randrange(2, SWITCHES + 1)
            self.switches = sorted({*self.switches} ^ {one})

    def update(
        self, tags_in_use: frozenset[int] = frozenset(), most: int = 1 << 30, doubtful: frozenset[int] = frozenset()
    ) -> dict[int, set[object]]:
        """Make another plan, and follow it as far as may be at once."""
        self.make_plan(tags_in_use, doubtful)
        return self.follow(most)

    def make_plan(self, tags_in_use: frozenset[int], doubtful: frozenset[int]) -> None:
        state = NetworkState(
            self.graph(),
            tuple(self.hosts.values()),
            self.edges,
            {3: frozenset({HOST_PORT})},
            tags_in_use,
            unreachable=self.whole.switches - {*self.switches} if self.goes_on_alone else frozenset(),
            doubtful=doubtful,
            review=tuple(self.plan.trees) if self.chance.randrange(2) else (),
            failover=self.failover,
        )
        self.plan = make(self.plan, state)

    def follow(self, most: int = 1 << 30) -> dict[int, set[object]]:
        changed = self.compiler.update(
            self.plan,
            dict(self.hosts),
            self.edges,
            self.switches,
            most=most,
            failover=self.failover,
            drop_marked=self.drop_marked,
            host_changes=self.host_changes(),
        )
        return {switch: set(keys) for switch, keys in changed.items()}

    def host_changes(self) -> int:
        """Return the number of times that hosts have moved, come or gone."""
        places = {mac: (host.port, host.tenant, host.vid) for mac, host in self.hosts.items()}
        self.host_moves += places != self.places
        self.places = places
        return self.host_moves

    def update_anew(self, compiler: Compiler) -> None:
        """Have another compiler make the rules of the plan at once."""
        compiler.update(
            self.plan, self.hosts, self.edges, self.switches, failover=self.failover, drop_marked=self.drop_marked
        )

    @property
    def drop_marked(self) -> frozenset[int]:
        return frozenset(self.switches) if self.has_failover else frozenset()


def copy(target: dict[int, Rules]) -> dict[int, Rules]:
    return {switch: dict(rules) for switch, rules in target.items()}


@given(st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_rules_that_were_changed_step_by_step_are_those_made_anew(seed: int) -> None:
    fabric = Fabric(seed)
    for _ in range(12):
        before = copy(fabric.compiler.target)
        fabric.change()
        changed = fabric.update()
        fresh = Compiler()
        fabric.update_anew(fresh)
        assert fabric.compiler.target == fresh.target
        for switch, has in fresh.target.items():
            was = before.get(switch, {})
            differing = {key for key in has.keys() | was.keys() if has.get(key) != was.get(key)}
            assert differing <= changed.get(switch, set())


def test_hosts_are_taken_over_a_few_at_a_time_and_all_in_the_end() -> None:
    fabric = Fabric(1)
    fabric.update()
    fabric.hosts = {mac(number): Host(mac(number), PortId(1 + number % 4, HOST_PORT)) for number in range(40)}
    updates = 0
    while updates == 0 or fabric.compiler.is_behind:
        changed = fabric.update(most=40)
        updates += 1
        in_tables = {SOURCES, DESTINATIONS, DELIVERY}
        assert sum(key[0] in in_tables for keys in changed.values() for key in keys) < 80  # type: ignore[index]
    assert 5 < updates < 20
    fresh = Compiler()
    fabric.update_anew(fresh)
    assert fabric.compiler.target == fresh.target


def test_a_switch_that_comes_back_does_not_have_all_hosts_taken_over_at_once() -> None:
    fabric = Fabric(1)
    fabric.update()
    whole = fabric.switches
    fabric.switches = whole[:-1]
    fabric.update()
    fabric.hosts = {mac(number): Host(mac(number), PortId(1 + number % 4, HOST_PORT)) for number in range(40)}
    fabric.switches = whole
    fabric.update(most=40)
    assert fabric.compiler.is_behind
    # A new one may have rules of hosts, which would be deleted.
    fabric.compiler = Compiler()
    fabric.update(most=40)
    assert not fabric.compiler.is_behind


class FloodedSwitches:
    """Switches that do what they are told one message after another, each in its own time."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.graph = graph
        self.chance = random.Random(seed)
        self.rules: dict[int, Rules] = {switch: {} for switch in graph.switches}
        self.queues: dict[int, list[ToSwitch]] = {switch: [] for switch in graph.switches}

    def tell(self, messages: list[tuple[int, ToSwitch]]) -> None:
        for switch, message in messages:
            self.queues[switch].append(message)

    def do_one(self) -> tuple[int, int] | None:
        """Have some switch follow its next message; return the switch and the token if it was a barrier."""
        switch = self.chance.choice([switch for switch, queue in self.queues.items() if queue])
        match self.queues[switch].pop(0):
            case AddRule(rule):
                self.rules[switch][rule.key] = rule
            case DeleteRule(key):
                self.rules[switch].pop(key, None)
            case Barrier(token):
                return switch, token
        return None

    def reached(self, start: int) -> list[int]:
        return reached(self.rules, self.graph, start)


def reached(has: dict[int, Rules], graph: Graph, start: int) -> list[int]:
    """Return the switches that a packet comes to which a host floods at one of them, each as often as it does."""
    to_flood = has[start].get((TREES, 0, Match()))
    tags = [each.vlan for each in to_flood.actions if isinstance(each, PushTag)] if to_flood is not None else []
    found: list[int] = []
    walk: list[tuple[int, int | None]] = [(start, None) for _ in tags]
    while walk and len(found) <= 2 * len(graph.switches):
        here, arrived = walk.pop()
        found.append(here)
        passed = has[here].get((PATHS, SINGLE_WAY, Match(vlan=tags[0])))
        for port in [each.port for each in passed.actions if isinstance(each, Output)] if passed else ():
            arc = graph.by_port.get(here, {}).get(port)
            if arc is not None and port != arrived:
                entrance = has[arc.target.switch].get((INGRESS, 85, Match(in_port=arc.target.port, vlan=tags[0])))
                if entrance is None or entrance.goto == PATHS:
                    walk.append((arc.target.switch, arc.target.port))
    return sorted(found)


@pytest.mark.parametrize("seed", range(6))
def test_another_flood_is_followed_in_parts_and_each_packet_reaches_every_switch_once_meanwhile(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    graph = graph_of(generated(12, seed=seed, more=1.5))
    outside = {switch: frozenset({HOST_PORT}) for switch in graph.switches}
    plan = make(Plan(), NetworkState(graph, outside=outside))
    made, switches = Compiler(), FloodedSwitches(graph, seed)
    updater = RuleUpdater(rank=made.rank)
    now = 0.0

    def follow(plan: Plan, most: int) -> None:
        updater.set_target(now, made.target, made.update(plan, {}, (), graph.switches, most=most))
        switches.tell(updater.poll_messages())

    def go_on() -> bool:
        """Have one message done, or time pass; return false if nothing is left."""
        nonlocal now
        if any(switches.queues.values()):
            answer = switches.do_one()
            if answer is not None:
                updater.handle_barrier(now, *answer)
        elif (due := updater.poll_timeout()) is not None:
            now = max(now, due)
            updater.handle_timeout(now)
        else:
            return False
        if updater.poll_publish():
            updater.handle_published(now, ())
        switches.tell(updater.poll_messages())
        return True

    for switch in graph.switches:
        updater.handle_rules(now, switch, ())
    follow(plan, 1 << 62)
    while go_on():
        pass
    monkeypatch.setattr(compiler, "MAX_TREE_RULES", 3)
    everybody, total, looks = sorted(graph.switches), 0, itertools.count()

    def look() -> None:
        # From one switch after the other: from all of them, each time, takes half a minute.
        assert switches.reached(everybody[next(looks) % len(everybody)]) == everybody

    # A switch that is to become a leaf, and then others, before the flood for the first one is in place.
    for parts, drained in ((3, 2), (9, 5), (1000, 7)):
        before = plan.floods[NOBODY]
        policies = Policies(drained=frozenset({drained}))
        state = NetworkState(
            graph, outside=outside, policies=policies, tags_in_use=updater.tags_in_use() | made.tags()
        )
        plan = make(plan, state)
        assert plan.floods[NOBODY] is not before
        count = 0
        while count == 0 or (made.is_behind and count < parts):
            follow(plan, 1000)
            count += 1
            for _ in range(switches.chance.randrange(40)):
                go_on()
                look()
        total += count
    assert total > 10
    assert not made.is_behind
    while go_on():
        look()
    fresh = Compiler()
    fresh.update(plan, {}, (), graph.switches)
    assert made.target == fresh.target == switches.rules
    assert made.tags() == fresh.tags()


def test_no_packet_is_led_to_the_tag_of_a_tree_that_is_gone_while_others_take_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "MAX_TREE_RULES", 1)
    graph = graph_of(generated(SWITCHES, seed=3, more=1.0))
    hosts = {mac(number): Host(mac(number), PortId(number, HOST_PORT)) for number in range(1, SWITCHES + 1)}
    plan = make(Plan(), NetworkState(graph, tuple(hosts.values())))
    made = Compiler()
    made.update(plan, hosts, (), graph.switches)
    former = {tree.tag for tree in plan.trees.values()}
    plan = make(plan, NetworkState(graph, tuple(hosts.values()), doubtful=frozenset(former)))
    parts = 0
    while parts == 0 or made.is_behind:
        made.update(plan, hosts, (), graph.switches, most=1000)
        parts += 1
        for has in made.target.values():
            led = [action.vlan for rule in has.values() for action in rule.actions if isinstance(action, PushTag)]
            assert len(led) == SWITCHES
            assert {tag_of(key) for key in has}.issuperset(led)
    assert parts == SWITCHES
    assert not former & made.tags()


def test_a_flood_comes_before_trees_to_switches_that_had_none(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(generated(SWITCHES, seed=3, more=1.0))
    outside = {switch: frozenset({HOST_PORT}) for switch in graph.switches}
    plan = make(Plan(), NetworkState(graph, outside=outside))
    made = Compiler()
    made.update(plan, {}, (), graph.switches)
    monkeypatch.setattr(compiler, "MAX_TREE_RULES", 40)
    hosts = {mac(number): Host(mac(number), PortId(number, HOST_PORT)) for number in range(1, SWITCHES + 1)}
    state = NetworkState(graph, tuple(hosts.values()), outside=outside, policies=Policies(drained=frozenset({2})))
    plan = make(plan, state)
    while made.flood_of(NOBODY) is not plan.floods[NOBODY]:
        assert not made.tags() & {tree.tag for tree in plan.trees.values()}
        made.update(plan, hosts, (), graph.switches, most=1000)
    while made.is_behind:
        made.update(plan, hosts, (), graph.switches, most=1000)
    fresh = Compiler()
    fresh.update(plan, hosts, (), graph.switches)
    assert made.target == fresh.target


def test_rules_that_are_made_for_some_switches_after_others_are_those_made_at_once() -> None:
    fabric = Fabric(5)
    fabric.hosts = {mac(number): Host(mac(number), PortId(1 + number % 8, HOST_PORT)) for number in range(40)}
    fabric.update()
    made = Compiler()
    for last in range(2, SWITCHES + 1, 2):
        made.update(
            fabric.plan,
            fabric.hosts,
            fabric.edges,
            range(1, last + 1),
            most=1,
            is_told=False,
            failover=fabric.failover,
            drop_marked=fabric.drop_marked,
        )
        assert made.is_behind
    fabric.update_anew(made)
    assert made.target == fabric.compiler.target


def test_a_tree_that_changed_at_a_switch_without_controller_is_named() -> None:
    fabric = Fabric(3)
    fabric.hosts = {mac(number): Host(mac(number), PortId(number, HOST_PORT)) for number in range(1, 9)}
    fabric.update()
    before = fabric.plan
    tree = before.trees[1]
    switch, port = next(iter(tree.onward.items()))
    lost = next(arc for arc in fabric.whole.arcs if arc.source == PortId(switch, port))
    fabric.lost.add(frozenset((lost.source, lost.target)))
    fabric.make_plan(frozenset(), frozenset())
    after = fabric.plan.trees[1]
    assert after.tag == tree.tag
    assert after.onward[switch] != port
    # It leaves before the plan is followed.
    fabric.switches.remove(switch)
    fabric.follow()
    assert tree.tag in fabric.compiler.untold
    fabric.follow()
    assert not fabric.compiler.untold


def test_a_lost_wire_changes_no_rule_of_a_host_and_few_of_trees() -> None:
    fabric = Fabric(3)
    fabric.hosts = {mac(number): Host(mac(number), PortId(1 + number % 8, HOST_PORT)) for number in range(80)}
    fabric.update()
    before = copy(fabric.compiler.target)
    tree = fabric.plan.trees[1]
    switch, port = next(iter(tree.onward.items()))
    arc = next(arc for arc in fabric.whole.arcs if arc.source == PortId(switch, port))
    fabric.lost = {frozenset((arc.source, arc.target))}
    fabric.chance = random.Random(1)
    fabric.update()
    assert fabric.plan.trees[1].tag == tree.tag
    after = fabric.compiler.target
    changed = [key for at in after for key in after[at] if after[at][key] != before[at].get(key)]
    assert changed
    assert not [key for key in changed if key[2].eth_dst is not None or key[2].eth_src is not None]


def test_the_tree_to_a_switch_with_datapath_id_0_does_not_get_the_packets_of_unknown_hosts() -> None:
    arcs = [Arc(*ends, 1e9) for ends in ((PortId(0, 1), PortId(7, 1)), (PortId(7, 1), PortId(0, 1)))]
    hosts = {mac(number): Host(mac(number), PortId(switch, HOST_PORT)) for number, switch in enumerate((0, 7))}
    plan = make(Plan(), NetworkState(Graph.of(arcs), tuple(hosts.values())))
    compiler = Compiler()
    compiler.update(plan, hosts, (), (0, 7))
    rules = compiler.target[7].values()
    to_host = next(rule for rule in rules if rule.table == DESTINATIONS and rule.match.eth_dst == mac(0))
    (to_tree,) = (rule for rule in rules if rule.table == TREES and rule.match.metadata is not None)
    assert to_tree.match.metadata == to_host.metadata
    # Packets that no rule has given any metadata have 0 (OpenFlow 1.3 §5.2).
    assert to_tree.match.metadata != 0


#: A switch, and true for packets that are marked there.
State = tuple[int, bool]


def goes_round(ways: dict[State, set[State]]) -> bool:
    """Return true if one of these ways leads round, for packets that are not marked at first."""
    reached = [here for here in ways if not here[1]]
    for here in reached:
        reached += [there for there in ways.get(here, ()) if there not in reached]
    ways = {here: ways[here] for here in reached if here in ways}
    done: set[State] = set()
    while fresh := [here for here, onward in ways.items() if here not in done and not onward & ways.keys() - done]:
        done.update(fresh)
    return done != ways.keys()


class Switches:
    """Switches that carry out changes one at a time, in any order that barriers allow."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.updater = RuleUpdater(drain=0.0, rank=fabric.compiler.rank)
        #: Messages that each switch has not handled yet.
        self.under_way: dict[int, list[ToSwitch]] = {}
        self.has: dict[int, Rules] = {switch: {} for switch in fabric.whole.switches}
        self.groups: dict[int, set[int]] = {switch: set() for switch in fabric.whole.switches}
        for switch in self.has:
            self.updater.handle_rules(0.0, switch, [])
        self.peer = {arc.source: arc.target.switch for arc in fabric.whole.arcs}
        #: Tags of trees, and where each switch may send packets under them.
        self.tags: set[int] = set()
        self.onward: dict[int, dict[int, dict[State, set[State]]]] = {switch: {} for switch in self.has}
        self.start = 0

    def follow(self, changed: dict[int, set[object]], *, most: int = 1 << 30) -> None:
        """Carry an update out to its end, or `most` messages of it; the others are still under way."""
        self.updater.set_target(0.0, self.fabric.compiler.target, changed)  # type: ignore[arg-type]
        for _ in range(most):
            self._collect()
            if self.updater.has_unsent and (not self.under_way or self.fabric.chance.randrange(4) == 0):
                self.updater.handle_timeout(0.0)
                continue
            if not self.under_way:
                return
            switch = self.fabric.chance.choice(sorted(self.under_way))
            message = self.under_way[switch].pop(0)
            if not self.under_way[switch]:
                del self.under_way[switch]
            match message:
                case AddRule(rule):
                    assert self.groups[switch].issuperset(groups_of(rule))
                    self.has[switch][rule.key] = rule
                case SetFailoverGroup(number):
                    assert number not in self.groups[switch]
                    self.groups[switch].add(number)
                case DeleteGroup(number):
                    assert not any(number in groups_of(rule) for rule in self.has[switch].values())
                    self.groups[switch].remove(number)
                case DeleteRule(key):
                    self.has[switch].pop(key, None)
                case Barrier(token):
                    self.updater.handle_barrier(0.0, switch, token)
            self.look_for_loops(switch)
            self.look_for_doubles()
        self._collect()

    def lose(self, switch: int) -> None:
        """End a switch's connection: it goes on by what it has, without what is still under way to it."""
        self.under_way.pop(switch, None)
        self.updater.handle_gone(0.0, switch)
        self.fabric.switches.remove(switch)

    def regain(self, switch: int) -> None:
        """Have a switch connect anew, and list what it has."""
        self.fabric.switches = sorted([*self.fabric.switches, switch])
        groups = {number: buckets_of(number) for number in self.groups[switch]}
        self.updater.handle_rules(0.0, switch, list(self.has[switch].values()), groups)

    def _collect(self) -> None:
        if self.updater.poll_publish():
            self.updater.handle_published(0.0, [])
        for switch, message in self.updater.poll_messages():
            self.under_way.setdefault(switch, []).append(message)

    def look_for_loops(self, changed: int) -> None:
        """No packet under a tag comes to a switch twice alike, whichever ports are down at any moment.

        A switch has changed since the last time, and no other one.
        """
        tags = {tree.tag for tree in self.fabric.plan.trees.values()}
        if tags != self.tags:
            self.tags = tags
            self.onward = {switch: self._onward(switch) for switch in self.has}
        else:
            before, self.onward[changed] = self.onward[changed], self._onward(changed)
            after = self.onward[changed]
            tags = {tag for tag in before.keys() | after.keys() if before.get(tag) != after.get(tag)}
        for tag in tags:
            ways = {here: there for each in self.onward.values() for here, there in each.get(tag, {}).items()}
            assert not goes_round(ways), f"tag {tag}"

    def _onward(self, switch: int) -> dict[int, dict[State, set[State]]]:
        """Return where a switch may send packets, by the tag of a tree."""
        onward: dict[int, dict[State, set[State]]] = {}
        rules = self.has[switch]
        drops = no_detour().key in rules
        for (table, _, match), rule in rules.items():
            if table == PATHS and match.vlan in self.tags and match.eth_type is None:
                ways = onward.setdefault(match.vlan or 0, {})
                marked = match.vlan_pcp is not None
                ways.setdefault((switch, marked), set()).update(self._next(switch, rule, marked=marked))
                if not marked and not drops and (PATHS, 40, Match(vlan=match.vlan, vlan_pcp=2)) not in rules:
                    ways.setdefault((switch, True), set()).update(self._next(switch, rule, marked=True))
        return onward

    def look_for_doubles(self) -> None:
        """No packet that is flooded comes to a switch twice, whichever lost links carry some still."""
        # From one after the other: all together take long.
        self.start = self.start % len(self.has) + 1
        there = reached(self.has, self.fabric.whole, self.start)
        assert len(there) == len({*there}), f"from {self.start}"

    def _next(self, switch: int, rule: Rule, *, marked: bool) -> set[State]:
        """Return where a rule may send a packet: by any bucket of a group."""
        found = set()
        for group in groups_of(rule):
            for bucket in buckets_of(group) or ():
                target = self.peer.get(PortId(switch, bucket.watch_port))
                if target is not None:
                    found.add((target, marked or len(bucket.actions) > 1))
        ports = [action.port for action in rule.actions if isinstance(action, Output)]
        target = self.peer.get(PortId(switch, ports[0])) if len(ports) == 1 else None
        return found | ({(target, marked)} if target is not None else set())


@pytest.mark.parametrize("does", ["nothing", "go", "go untold", "refuse"])
def test_nobody_sends_to_a_switch_that_may_not_have_followed_the_repair_of_a_tree(
    monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    """A ring: 2 is cut off, and would go by 3, which went by 2 and may do so still."""
    slow = {frozenset((3, 4))}
    wires = [(PortId(one, other), PortId(other, one)) for one, other in ((1, 2), (2, 3), (3, 4), (1, 4))]
    arcs = [
        Arc(*ends, 1e9, latency=0.01 if frozenset(end.switch for end in ends) in slow else 0.001)
        for wire in wires
        for ends in (wire, wire[::-1])
    ]
    host = Host(mac(1), PortId(1, HOST_PORT))
    compiler = Compiler()
    updater = RuleUpdater(drain=0.0, rank=compiler.rank)
    for switch in range(1, 5):
        updater.handle_rules(0.0, switch, [])

    def follow(before: Plan, graph: Graph) -> tuple[Plan, list[tuple[int, ToSwitch]]]:
        state = NetworkState(graph, (host,), tags_in_use=updater.tags_in_use(), doubtful=frozenset(updater.doubtful))
        made = make(before, state)
        changed = compiler.update(made, {host.mac: host}, (), range(1, 5))
        updater.set_target(0.0, compiler.target, changed)
        return made, updater.poll_messages()

    whole, sent = follow(Plan(), Graph.of(arcs))
    assert whole.trees[1].onward == {2: 1, 3: 2, 4: 1}
    while sent:
        for switch, message in sent:
            if isinstance(message, Barrier):
                updater.handle_barrier(0.0, switch, message.token)
        if updater.poll_publish():
            updater.handle_published(0.0, [])
        sent = updater.poll_messages()
    assert updater.idle
    cut = Graph.of(arc for arc in arcs if {arc.source.switch, arc.target.switch} != {1, 2})
    if does == "go untold":
        # All that changes has a turn of its own.
        monkeypatch.setattr("braid_sdn.fabric.switches.updater.MAX_SENT", 1)
    repaired, sent = follow(whole, cut)
    tag = whole.trees[1].tag
    assert (repaired.trees[1].tag, repaired.trees[1].onward) == (tag, {2: 3, 3: 4, 4: 1})

    def told(tag: int, sent: list[tuple[int, ToSwitch]]) -> set[int]:
        return {at for at, each in sent if isinstance(each, AddRule) and tag_of(each.rule.key) == tag}

    assert told(tag, sent) == (set() if does == "go untold" else {3})
    # A rule that it refuses in place of another one is sent once more after that one was deleted.
    for _ in range(2 if does == "refuse" else 1):
        for switch, message in sent:
            match message:
                case AddRule(rule) if switch == 3 and does == "refuse":
                    updater.handle_refused(0.0, 3, rule)
                case Barrier(token) if switch != 3 or does == "refuse":
                    updater.handle_barrier(0.0, switch, token)
        if does == "refuse":
            sent = updater.poll_messages()
            assert told(tag, sent) <= {3}
    if does.startswith("go"):
        updater.handle_gone(1.0, 3)
        for _ in range(10):
            updater.handle_timeout(1.0)
            sent = updater.poll_messages()
            assert told(tag, sent) == set()
            for switch, message in sent:
                if isinstance(message, Barrier):
                    updater.handle_barrier(1.0, switch, message.token)
        monkeypatch.undo()
    elif does == "nothing":
        updater.handle_timeout(BARRIER_TIMEOUT)
    assert told(tag, updater.poll_messages()) == set()
    after, sent = follow(repaired, cut)
    assert after.trees[1].tag != tag
    assert told(after.trees[1].tag, sent) >= {2, 4}


@pytest.mark.parametrize("has_failover", [True, False])
@given(seed=st.integers(0, 1 << 30))
@example(seed=8192)
@settings(max_examples=40, deadline=None)
def test_no_packet_goes_round_while_trees_are_repaired(has_failover: bool, seed: int) -> None:
    fabric = Fabric(seed)
    fabric.has_failover = has_failover
    if not has_failover:
        fabric.failover = frozenset()
    fabric.hosts = {mac(number): Host(mac(number), PortId(number, HOST_PORT)) for number in range(1, 5)}
    changed = fabric.update()
    switches = Switches(fabric)
    switches.follow(changed)
    for _ in range(8):
        arc = fabric.chance.choice(fabric.whole.arcs)
        fabric.lost ^= {frozenset((arc.source, arc.target))}
        # Switches get groups when they connect, and lose them when they refuse one.
        if has_failover and fabric.chance.randrange(4) == 0:
            fabric.failover ^= {fabric.chance.choice(fabric.switches)}
        # Often before the last one is done.
        switches.follow(
            fabric.update(switches.updater.tags_in_use()), most=fabric.chance.choice((3, 10, 30, 1 << 30))
        )
    switches.follow(fabric.update())
    for switch, rules in switches.has.items():
        assert rules == fabric.compiler.target[switch]
        # Nothing is left of groups that are not needed any more.
        assert switches.groups[switch] == {group for rule in rules.values() for group in groups_of(rule)}


@given(seed=st.integers(0, 1 << 30))
@example(seed=9)
@example(seed=20)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_packet_goes_round_while_plans_are_followed_in_parts_and_switches_lose_the_controller(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(compiler, "MAX_TREE_RULES", 2 * CHANGED_TREE_COST)
    monkeypatch.setattr("braid_sdn.fabric.switches.updater.MAX_SENT", 3)
    fabric = Fabric(seed)
    fabric.goes_on_alone = True
    if fabric.chance.randrange(2):
        fabric.has_failover = False
        fabric.failover = frozenset()
    fabric.hosts = {mac(number): Host(mac(number), PortId(number, HOST_PORT)) for number in range(1, 5)}
    changed = fabric.update()
    switches = Switches(fabric)
    switches.follow(changed)

    def lose_some() -> None:
        for switch in sorted(fabric.whole.switches):
            if switch in fabric.switches:
                if len(fabric.switches) > 5 and fabric.chance.randrange(16) == 0:
                    switches.lose(switch)
            elif fabric.chance.randrange(8) == 0:
                switches.regain(switch)

    def follow() -> None:
        """Follow the plan to some point, a part after the other, as the controller does."""
        while True:
            lose_some()
            changed = fabric.follow(1000)
            switches.updater.doubtful |= fabric.compiler.untold
            switches.follow(changed, most=fabric.chance.choice((3, 10, 30, 1 << 30)))
            if not fabric.compiler.is_repairing:
                return

    for _ in range(8):
        arc = fabric.chance.choice(fabric.whole.arcs)
        fabric.lost ^= {frozenset((arc.source, arc.target))}
        for _ in range(10):
            tags_in_use = switches.updater.tags_in_use() | fabric.compiler.tags()
            fabric.make_plan(frozenset(tags_in_use), frozenset(switches.updater.doubtful))
            follow()
            if not switches.updater.doubtful & switches.tags:
                break
    for switch in sorted(fabric.whole.switches - {*fabric.switches}):
        switches.regain(switch)
    switches.follow(fabric.update(switches.updater.tags_in_use(), doubtful=frozenset(switches.updater.doubtful)))
    for switch, rules in switches.has.items():
        assert rules == fabric.compiler.target[switch]
