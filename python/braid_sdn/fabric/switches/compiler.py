"""Keeps the rules of all switches that a plan leads to, and changes those alone that another plan concerns.

The rules of a switch, of a tree, of a path and of a host are made when they change. Hosts that came, moved or went,
trees, and another flood are taken over a number of rules at a time, so that no change takes long; the others wait for
the next update. A flood that takes the place of another is first put everywhere under its own tag, then packets are
led to it, switch by switch, and the other one goes last.

In a small network every switch with hosts knows every host. In a large one it knows its own, and those it is asked
for (`ask`): so its rules grow with switches, paths, and what its own hosts do. Packets are led to the trees of hosts
that a switch knows, and to no others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from braid_sdn.fabric.plan.plan import Edge, Flood, Host, PinnedPath, Plan, TaggedPath, Tree, tree_key
from braid_sdn.fabric.switches import flood_limit, rules
from braid_sdn.fabric.switches.flood_limit import Limited
from braid_sdn.fabric.switches.rules import NO_TENANTS, Rules, tag_of
from braid_sdn.fabric.tenants import Tenants
from braid_sdn.openflow.messages import Rule, RuleKey

#: Rules that are changed for hosts in one update at most, once there is a plan.
MAX_HOST_RULES = 1500

#: Rules of trees and floods that are changed in one update at most, once there is a plan; a tree that changes counts
#: as this many besides.
MAX_TREE_RULES = 3000
CHANGED_TREE_COST = 10
#: Rules of a tree with a detour at a switch.
MAX_RULES_WITH_DETOUR = 3

#: Every switch knows every host while there are at most so many hosts, and rules for them in all; half as many, once
#: there were more.
MAX_HOSTS_EVERYWHERE = 256
MAX_RULES_EVERYWHERE = 16_384

Changes = dict[int, set[RuleKey]]

NOTHING_LIMITED: Mapping[int, tuple[Limited, ...]] = {}

K = TypeVar("K")
P = TypeVar("P")


@dataclass(frozen=True)
class _Ports:
    """Ports of a switch on which its own rules depend."""

    internal: frozenset[int]
    outside: frozenset[int]
    edges: tuple[int, ...]
    everywhere: bool
    drops_marked: bool
    tenants: tuple[tuple[int, int], ...]
    trunks: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    limited: tuple[Limited, ...]


#: Of a switch the ports on a flood's tree, links, ports of hosts, and trunks with the VID of the tenant's frames.
_FloodPorts = tuple[frozenset[int], frozenset[int], frozenset[int], tuple[tuple[int, int], ...]]


@dataclass
class _FloodRules:
    """The rules of one flood."""

    flood: Flood
    #: The ports, and the keys, of those that each switch has.
    ports: dict[int, _FloodPorts] = field(default_factory=dict)
    keys: dict[int, list[RuleKey]] = field(default_factory=dict)


@dataclass
class _Floods:
    """The floods of one tenant whose rules switches have."""

    tenant: int
    by_tag: dict[int, _FloodRules] = field(default_factory=dict)
    #: The tag to which each switch leads packets.
    leads: dict[int, int] = field(default_factory=dict)
    #: True if some switch may not have the rules of the last plan's flood, or has those of another one.
    is_behind: bool = False
    #: The last plan's ports, of which rules were made.
    made_of: tuple[object, ...] = ()
    #: The steps that are left, with the flood that they are for; None if they are to be sought at all switches.
    steps: tuple[Flood, Iterator[int]] | None = None


@dataclass
class Compiler:
    """The rules of all switches. Changed in place; the last changes say where."""

    target: dict[int, Rules] = field(default_factory=dict)
    tenants: Tenants = NO_TENANTS
    #: That of the tenants' configuration; 0 without.
    digest: int = 0
    #: True if hosts or trees wait for the next update; and if trees do that there were already.
    is_behind: bool = False
    is_repairing: bool = False
    #: Tags of trees that changed in the last update at a switch that has left, and goes on by the rules that it has.
    untold: set[int] = field(default_factory=set)
    #: True if every switch with hosts has a rule for each host.
    everywhere: bool = True
    #: Switches that are to know each host elsewhere, as sets of keys.
    _asked: dict[str, dict[int, None]] = field(default_factory=dict)
    _changed: Changes = field(default_factory=dict)
    _ports: dict[int, _Ports] = field(default_factory=dict)
    #: All that they were made of.
    _ports_of: tuple[object, ...] = ()
    _own: dict[int, list[RuleKey]] = field(default_factory=dict)
    #: By tenants.
    _floods: dict[int, _Floods] = field(default_factory=dict)
    _trees: dict[int, Tree] = field(default_factory=dict)
    _by_tag: dict[int, Tree] = field(default_factory=dict)
    #: Rules of each tree by its tag, their kind and ports.
    _of_tag: dict[int, dict[tuple[object, ...], Rule]] = field(default_factory=dict)
    #: Switches that were there at some time.
    _known: set[int] = field(default_factory=set)
    #: Switches with fast failover groups.
    _failover: frozenset[int] = frozenset()
    #: Switches that drop marked packets for which they have no rule.
    _drop_marked: frozenset[int] = frozenset()
    _paths: dict[int, TaggedPath] = field(default_factory=dict)
    _pinned: dict[tuple[str, str], PinnedPath] = field(default_factory=dict)
    _hosts: dict[str, Host] = field(default_factory=dict)
    #: The switches of all hosts, and the number of changes of where these are, in the last update; true if some of
    #: them wait for the next one.
    _homes: set[int] = field(default_factory=set)
    _host_changes: int | None = None
    _are_hosts_behind: bool = False
    #: For the key of each tree, the switches elsewhere that know hosts at its root, each with these hosts' MACs.
    _senders: dict[int, dict[int, set[str]]] = field(default_factory=dict)
    #: Switches with hosts or free ports, as sets of keys: a new host's first frame must be forwarded.
    _inhabited: dict[int, None] = field(default_factory=dict)

    def update(
        self,
        plan: Plan,
        hosts: Mapping[str, Host],
        edges: Iterable[Edge],
        switches: Iterable[int],
        *,
        most: int = sys.maxsize,
        is_told: bool = True,
        failover: Collection[int] = (),
        drop_marked: Collection[int] = (),
        limited: Mapping[int, tuple[Limited, ...]] = NOTHING_LIMITED,
        host_changes: int | None = None,
    ) -> Changes:
        """Change the rules to those of another plan; return the keys of what changed at each switch.

        Rules of hosts are changed until there are `most` changes, and those of trees and floods until there are
        MAX_TREE_RULES.
        All of them are with `most` at its default, and if there is a switch that has not been there yet, since it
        may have rules of hosts that would otherwise be deleted meanwhile; unless no switch is told of any
        (`is_told`). One that comes back has none but those that are restored. `failover` are the switches with fast
        failover groups. Marked packets come to others as well while switches get groups or lose them: `drop_marked`
        are all that can drop those. `limited` are the ports of each switch that may have so much flooded. Hosts are
        where they were as long as `host_changes`, if it is known, is what it was.
        """
        fresh = self._set_switches(switches)
        if is_told and not self._known.issuperset(fresh):
            most = sys.maxsize
        self._known.update(fresh)
        is_same = host_changes is not None and host_changes == self._host_changes
        self._host_changes = host_changes
        if not is_same:
            self._homes = {host.port.switch for host in hosts.values()}
        inhabited = self._inhabited_in(plan)
        self._set_mode(len(hosts), len(inhabited))
        self._set_failover(frozenset(failover))
        self._drop_marked = frozenset(drop_marked)
        self._set_ports(plan, edges, limited)
        self._set_paths(plan)
        self._set_inhabited(inhabited)
        self.is_behind = False
        if not is_same or self._are_hosts_behind:
            self._set_hosts(hosts, most)
        left = self._change_trees(plan, sys.maxsize if most == sys.maxsize else MAX_TREE_RULES)
        # Until there is a tree to a host, packets to it are flooded.
        for tenant, wanted in plan.floods.items():
            left = self._set_flood(plan, self._floods.setdefault(tenant, _Floods(tenant)), wanted, fresh, left)
        self._add_trees(plan, left)
        changed, self._changed = self._changed, {}
        return changed

    def ask(self, switch: int, mac: str) -> list[Rule]:
        """Have a switch know a host elsewhere; return the rules it needs for that, in their order, if that is new."""
        asked, host = self._asked.setdefault(mac, {}), self._hosts.get(mac)
        is_known = self.everywhere or switch in asked
        asked[switch] = None
        if is_known or host is None or host.port.switch == switch or switch not in self._inhabited:
            return []
        return self._put_remote(host, [switch])

    def dismiss(self, switch: int, mac: str) -> None:
        """Have a switch know a host elsewhere no more."""
        asked, host = self._asked.get(mac, {}), self._hosts.get(mac)
        if switch not in asked:
            return
        del asked[switch]
        if not asked:
            del self._asked[mac]
        if not self.everywhere and host is not None:
            self._drop_remote(host, [switch])

    def forget(self, switch: int) -> None:
        """Forget a switch's rules: the next update makes all of them."""
        self._set_switches(self.target.keys() - {switch})

    def tags(self) -> set[int]:
        """Return the tags of trees and floods."""
        return {*self._by_tag, *(tag for each in self._floods.values() for tag in each.by_tag)}

    def flood_of(self, tenant: int) -> Flood | None:
        """Return a flood to which switches lead a tenant's packets, so that all have its rules; None if none."""
        known = self._floods.get(tenant, _Floods(tenant))
        tag = next(iter(known.leads.values()), None)
        return known.by_tag[tag].flood if tag is not None else None

    def asked(self) -> list[tuple[int, str]]:
        """Return the switches, and the hosts elsewhere, that they are to know."""
        return [(switch, mac) for mac, at in self._asked.items() for switch in at]

    def rank(self, switch: int, key: RuleKey) -> int:
        """Return the place of a rule in the order in which rules are changed, from 1; 0 for one that needs none.

        Switches of a repaired tree follow those that are nearer to its root. Detours are not repaired.
        """
        tree = self._by_tag.get(tag_of(key) or 0) if not rules.is_marked(key) else None
        return tree.hops.get(switch, 0) if tree is not None and tree.repairs else 0

    def _put(self, switch: int, rule: Rule) -> None:
        has = self.target.get(switch)
        if has is not None:
            key = rule.key
            has[key] = rules.with_digest(rule, self.digest)
            self._changed.setdefault(switch, set()).add(key)

    def _has(self, switch: int, rule: Rule) -> bool:
        return self.target[switch].get(rule.key) == rules.with_digest(rule, self.digest)

    def _drop(self, switch: int, key: RuleKey) -> None:
        has = self.target.get(switch)
        if has is not None and has.pop(key, None) is not None:
            self._changed.setdefault(switch, set()).add(key)

    def _set_switches(self, switches: Iterable[int]) -> list[int]:
        """Forget switches that left, and restore those that came; return these."""
        wanted = set(switches)
        for switch in self.target.keys() - wanted:
            for known in (self.target, self._ports, self._own, self._inhabited):
                known.pop(switch, None)
            for senders in self._senders.values():
                senders.pop(switch, None)
            for floods in self._floods.values():
                floods.steps = None
                floods.leads.pop(switch, None)
                for each in floods.by_tag.values():
                    each.ports.pop(switch, None)
                    each.keys.pop(switch, None)
        fresh = sorted(wanted - self.target.keys())
        for switch in fresh:
            self.target[switch] = {}
            self._changed.setdefault(switch, set())
        if fresh:
            self._restore({*fresh})
        return fresh

    def _restore(self, fresh: set[int]) -> None:
        """Put what is known already at switches that came."""
        for tree in self._trees.values():
            for switch in fresh:
                self._put_tree(tree, switch)
        paths: list[TaggedPath | PinnedPath] = [*self._paths.values(), *self._pinned.values()]
        for path in paths:
            if path.last in fresh or any(step.switch in fresh for step in path.steps):
                made = rules.of_path(path) if isinstance(path, TaggedPath) else rules.of_pinned(path)
                for switch, rule in made:
                    if switch in fresh:
                        self._put(switch, rule)
        for host in self._hosts.values():
            if host.port.switch in fresh:
                for rule in rules.of_local_host(host):
                    self._put(host.port.switch, rule)

    def _set_ports(self, plan: Plan, edges: Iterable[Edge], limited: Mapping[int, tuple[Limited, ...]]) -> None:
        edges = tuple(edges)
        made_of = (
            plan.internal,
            plan.outside,
            edges,
            self.everywhere,
            self._drop_marked,
            frozenset(self.target),
            plan.port_tenants,
            plan.trunks,
            limited,
        )
        if made_of == self._ports_of:
            return
        self._ports_of = made_of
        at: dict[int, set[int]] = {}
        for edge in edges:
            at.setdefault(edge.port.switch, set()).add(edge.port.port)
        nothing = frozenset[int]()
        for switch in self.target:
            ports = _Ports(
                plan.internal.get(switch, nothing),
                plan.outside.get(switch, nothing),
                tuple(sorted(at.get(switch, ()))),
                self.everywhere,
                switch in self._drop_marked,
                tuple(sorted(plan.port_tenants.get(switch, {}).items())),
                tuple((port, tuple(vids.items())) for port, vids in sorted(plan.trunks.get(switch, {}).items())),
                limited.get(switch, ()),
            )
            if self._ports.get(switch) == ports:
                continue
            self._ports[switch] = ports
            made = rules.of_switch(
                plan,
                switch,
                ports.edges,
                everywhere=self.everywhere,
                drops_marked=ports.drops_marked,
                limits_floods=bool(ports.limited),
                tenants=self.tenants,
            )
            for each in ports.limited:
                made += flood_limit.rules_of(each, everywhere=self.everywhere)
            keys = [rule.key for rule in made]
            for key in set(self._own.get(switch, ())) - set(keys):
                self._drop(switch, key)
            self._own[switch] = keys
            for rule in made:
                if not self._has(switch, rule):
                    self._put(switch, rule)

    def _set_flood(self, plan: Plan, floods: _Floods, wanted: Flood, fresh: Collection[int], most: int) -> int:
        """Change rules of a tenant's floods; return how many more may be changed.

        Those of switches that came are complete after that, and count for nothing.
        """
        known = floods.by_tag.get(wanted.tag)
        is_same = known is not None and known.flood is wanted and not floods.is_behind
        if known is None:
            known = floods.by_tag[wanted.tag] = _FloodRules(wanted)
        known.flood = wanted
        for switch in fresh:
            # It passes on packets of all floods that others may lead to. It leads to the one that is complete.
            for each in floods.by_tag.values():
                self._put_flood(plan, floods, each, switch)
            self._lead_to(floods, switch, next(iter(floods.leads.values()), wanted.tag))
        made_of = (plan.outside, plan.internal, plan.port_tenants, plan.trunks)
        is_made_of = made_of == floods.made_of
        if is_same and is_made_of:
            return most
        if floods.steps is None or fresh or not is_made_of or floods.steps[0] is not wanted:
            floods.steps = wanted, self._flood_steps(plan, floods, known)
        floods.made_of = made_of
        left, steps = most, floods.steps[1]
        while left > 0 and (count := next(steps, None)) is not None:
            left -= count
        floods.is_behind = left <= 0
        if floods.is_behind:
            self.is_behind = self.is_repairing = True
        else:
            floods.steps = None
        return left

    def _flood_steps(self, plan: Plan, floods: _Floods, wanted: _FloodRules) -> Iterator[int]:
        """Have packets take a flood alone, step by step; yield how many rules each of these changes."""
        for switch in self.target:
            yield self._put_flood(plan, floods, wanted, switch)
        for switch in self.target:
            yield self._lead_to(floods, switch, wanted.flood.tag)
        for tag in [each for each in floods.by_tag if each != wanted.flood.tag]:
            keys = floods.by_tag[tag].keys
            while keys:
                switch, gone = keys.popitem()
                for key in gone:
                    self._drop(switch, key)
                yield len(gone)
            del floods.by_tag[tag]

    def _put_flood(self, plan: Plan, floods: _Floods, known: _FloodRules, switch: int) -> int:
        """Put a flood's rules at a switch as its ports are now; return how many changed."""
        nothing = frozenset[int]()
        flood, internal = known.flood, plan.internal.get(switch, nothing)
        outside, trunks = plan.outside_of(switch, floods.tenant), plan.trunks_of(switch, floods.tenant)
        ports = (flood.ports.get(switch, nothing), internal, outside, trunks)
        if known.ports.get(switch) == ports:
            return 0
        known.ports[switch] = ports
        made = rules.of_flood(flood.tag, *ports)
        keys = [rule.key for rule in made]
        count = 0
        for key in set(known.keys.get(switch, ())) - set(keys):
            self._drop(switch, key)
            count += 1
        known.keys[switch] = keys
        for rule in made:
            if not self._has(switch, rule):
                self._put(switch, rule)
                count += 1
        return count

    def _lead_to(self, floods: _Floods, switch: int, tag: int) -> int:
        """Have a switch lead packets that are to be flooded to a flood; return how many rules changed."""
        if floods.leads.get(switch) == tag:
            return 0
        floods.leads[switch] = tag
        self._put(switch, rules.to_flood(tag, floods.tenant))
        return 1

    def _change_trees(self, plan: Plan, most: int) -> int:
        """Change rules of trees that there were already; return how many more may be changed."""
        self.is_repairing = False
        self.untold.clear()
        left = most
        for root, tree in list(self._trees.items()):
            after = plan.trees.get(root)
            if after is not tree:
                if left <= 0:
                    self.is_repairing = self.is_behind = True
                    return 0
                left -= self._change_tree(tree, after)
        return left

    def _add_trees(self, plan: Plan, most: int) -> None:
        left = most
        for root, tree in plan.trees.items():
            if root not in self._trees:
                if left <= 0:
                    self.is_behind = True
                    return
                left -= self._add_tree(tree)

    def _add_tree(self, tree: Tree) -> int:
        """Put a tree's rules; return what that costs."""
        self._trees[tree.key] = self._by_tag[tree.tag] = tree
        for switch in self._switches_of(tree):
            self._put_tree(tree, switch)
        return len(tree.onward) * (MAX_RULES_WITH_DETOUR if tree.detour is not None else 1)

    def _change_tree(self, before: Tree, after: Tree | None) -> int:
        """Change a tree's rules; return what that costs."""
        del self._trees[before.key]
        del self._by_tag[before.tag]
        if after is None or after.tag != before.tag:
            for switch in self._switches_of(before):
                for rule in self._on_tree(before, switch):
                    self._drop(switch, rule.key)
            self._of_tag.pop(before.tag, None)
            kept = after.onward.keys() if after is not None else ()
            for switch in before.onward.keys() - kept:
                self._drop(switch, rules.to_tree(before).key)
            # In place of the other: its rule in the table of trees may not lead to a tag that is dropped.
            return len(before.onward) + (self._add_tree(after) if after is not None else 0)
        self._trees[after.key] = self._by_tag[after.tag] = after
        for switch in before.onward.keys() - after.onward.keys():
            self._drop(switch, rules.to_tree(before).key)
        changed = 0
        for switch in _differing(before, after):
            if switch not in self.target and switch in before.onward and switch in after.onward:
                self.untold.add(after.tag)
            had = {rule.key: rule for rule in self._on_tree(before, switch)}
            has = {rule.key: rule for rule in self._on_tree(after, switch)}
            if had != has:
                changed += 1
                for key in had.keys() - has.keys():
                    self._drop(switch, key)
                self._put_tree(after, switch)
        return CHANGED_TREE_COST + changed

    def _put_tree(self, tree: Tree, switch: int) -> None:
        for rule in self._on_tree(tree, switch):
            self._put(switch, rule)
        if switch in tree.onward and self._sends_by(switch, tree):
            self._put(switch, self._to_tree(tree))

    def _sends_by(self, switch: int, tree: Tree) -> bool:
        """Return true if a switch knows hosts at a tree's root."""
        return switch in self._senders.get(tree.key, ())

    @staticmethod
    def _switches_of(tree: Tree) -> set[int]:
        detour = tree.detour.onward if tree.detour is not None else {}
        return {tree.root, *tree.onward, *detour}

    def _on_tree(self, tree: Tree, switch: int) -> list[Rule]:
        """Return the rules of a switch for packets under a tree's tag, the marked ones too."""
        if switch == tree.root:
            end = self._of(tree, rules.of_tree_end)
            return [end] if tree.detour is None else [end, self._of(tree, rules.of_detour_end)]
        made = []
        port = tree.onward.get(switch)
        other = tree.detour_port(switch) if switch in self._failover else None
        if port is not None:
            made.append(self._of(tree, rules.of_tree, port, other))
            made += [self._of(tree, rules.of_tree, port, other, at) for at in tree.turning.get(switch, ())]
        if tree.detour is not None and switch in tree.detour.onward:
            made.append(self._of(tree, rules.of_detour, tree.detour.onward[switch]))
        return made

    def _of(self, tree: Tree, make: Callable[..., Rule], *ports: int | None) -> Rule:
        # Many switches have the same rule.
        known = self._of_tag.setdefault(tree.tag, {})
        found = known.get((make, *ports))
        if found is None:
            found = known[make, *ports] = make(tree, *ports)
        return found

    def _to_tree(self, tree: Tree) -> Rule:
        return self._of(tree, rules.to_tree)

    def _set_failover(self, failover: frozenset[int]) -> None:
        """Take over which switches have fast failover groups: those that have none any more do without."""
        changed = (failover ^ self._failover) & self.target.keys()
        had = {
            (switch, rule.key)
            for tree in (self._trees.values() if changed else ())
            for switch in changed
            for rule in self._on_tree(tree, switch)
        }
        self._failover = failover
        for tree in self._trees.values() if changed else ():
            for switch in changed:
                for rule in self._on_tree(tree, switch):
                    had.discard((switch, rule.key))
                    if not self._has(switch, rule):
                        self._put(switch, rule)
        for switch, key in had:
            self._drop(switch, key)

    def _set_paths(self, plan: Plan) -> None:
        wanted = {path.tag: path for pair in plan.pairs.values() for path in pair.paths}
        self._follow(self._paths, wanted, rules.of_path)
        self._follow(self._pinned, plan.pinned, rules.of_pinned)

    def _follow(
        self, known: dict[K, P], wanted: Mapping[K, P], rules_of: Callable[[P], Iterable[tuple[int, Rule]]]
    ) -> None:
        """Drop the rules of paths that are not wanted as they were, and put those of new ones."""
        for key, path in list(known.items()):
            if wanted.get(key) != path:
                del known[key]
                for switch, rule in rules_of(path):
                    self._drop(switch, rule.key)
        for key, path in wanted.items():
            if key not in known:
                known[key] = path
                for switch, rule in rules_of(path):
                    self._put(switch, rule)

    def _set_mode(self, hosts: int, inhabited: int) -> None:
        """Choose for a number of hosts, and of switches with hosts or free ports, whether each knows all."""
        part = 1 if self.everywhere else 2
        fits = hosts * part <= MAX_HOSTS_EVERYWHERE and hosts * inhabited * part <= MAX_RULES_EVERYWHERE
        if fits == self.everywhere:
            return
        self.everywhere = fits
        if not fits:
            # Rules that are there stay, until their counters show that nobody uses them.
            for mac, host in self._hosts.items():
                at = {switch: None for switch in self._inhabited if switch != host.port.switch}
                self._asked.setdefault(mac, {}).update(at)
            return
        self._asked.clear()
        for host in self._hosts.values():
            self._put_remote(host, self._inhabited)

    def _set_hosts(self, hosts: Mapping[str, Host], most: int) -> None:
        left = most
        self._are_hosts_behind = False
        gone = [host for mac, host in self._hosts.items() if mac not in hosts]
        changed = [
            host
            for mac, host in hosts.items()
            if (known := self._hosts.get(mac)) is None
            or (known.port, known.tenant, known.vid) != (host.port, host.tenant, host.vid)
        ]
        for host in (*gone, *changed):
            if left <= 0:
                self.is_behind = self._are_hosts_behind = True
                return
            at = self._knowing(host.mac)
            left -= 2 * len(at) + 3
            known = self._hosts.pop(host.mac, None)
            if known is not None:
                for rule in rules.of_local_host(known):
                    self._drop(known.port.switch, rule.key)
                self._drop_remote(known, at)
            if host.mac in hosts:
                self._hosts[host.mac] = host
                self._put_remote(host, at)
                for rule in rules.of_local_host(host):
                    self._put(host.port.switch, rule)

    def _knowing(self, mac: str) -> Collection[int]:
        """Return the switches that are to know a host that is elsewhere."""
        if self.everywhere:
            return self._inhabited
        return [switch for switch in self._asked.get(mac, ()) if switch in self._inhabited]

    def _put_remote(self, host: Host, switches: Iterable[int]) -> list[Rule]:
        """Have other switches know a host; return the rules that the last one needs for that, in their order."""
        remote = rules.of_remote_host(host)
        key = tree_key(host.port.switch, host.tenant)
        tree, senders = self._trees.get(key), self._senders.setdefault(key, {})
        led = [self._to_tree(tree), remote] if tree is not None else [remote]
        needed: list[Rule] = []
        for switch in switches:
            if switch != host.port.switch:
                needed = led if tree is not None and switch in tree.onward else [remote]
                for rule in needed if switch not in senders else [remote]:
                    self._put(switch, rule)
                senders.setdefault(switch, set()).add(host.mac)
        return needed

    def _drop_remote(self, host: Host, switches: Iterable[int]) -> None:
        """Have other switches know a host no more."""
        remote = rules.of_remote_host(host).key
        key = tree_key(host.port.switch, host.tenant)
        tree, senders = self._trees.get(key), self._senders.get(key, {})
        for switch in switches:
            if host.mac in (known := senders.get(switch, set())):
                known.discard(host.mac)
                self._drop(switch, remote)
                if not known:
                    del senders[switch]
                    if tree is not None:
                        self._drop(switch, rules.to_tree(tree).key)
        if not senders:
            self._senders.pop(key, None)

    def _inhabited_in(self, plan: Plan) -> set[int]:
        """Return the switches that are there, and have hosts or free ports."""
        found = self._homes | {switch for switch, out in plan.outside.items() if out}
        return found & self.target.keys()

    def _set_inhabited(self, wanted: set[int]) -> None:
        gone, fresh = self._inhabited.keys() - wanted, wanted - self._inhabited.keys()
        for switch, host in self._hosts_known_to(gone):
            self._drop_remote(host, [switch])
        for switch in gone:
            del self._inhabited[switch]
        self._inhabited.update(dict.fromkeys(sorted(fresh)))
        for switch, host in self._hosts_known_to(fresh):
            self._put_remote(host, [switch])

    def _hosts_known_to(self, switches: Collection[int]) -> Iterator[tuple[int, Host]]:
        """Yield each of these switches with each host elsewhere that it is to know."""
        for mac, host in self._hosts.items() if switches else ():
            for switch in switches if self.everywhere else self._asked.get(mac, {}).keys() & switches:
                if switch != host.port.switch:
                    yield switch, host


def _differing(one: Tree, other: Tree) -> set[int]:
    """Return the switches at which two trees of one tag differ."""
    if other.repairs == one.repairs + 1:
        found = {*other.repaired}
    else:
        found = _differing_ports(one.onward, other.onward) if other.onward is not one.onward else set()
    if one.detour is not other.detour:
        nothing = dict[int, int]()
        ports = [each.detour.onward if each.detour is not None else nothing for each in (one, other)]
        found |= _differing_ports(*ports) | {one.root}
    if one.turning is not other.turning:
        both = one.turning.keys() | other.turning.keys()
        found |= {switch for switch in both if one.turning.get(switch) != other.turning.get(switch)}
    return found


def _differing_ports(one: Mapping[int, int], other: Mapping[int, int]) -> set[int]:
    return {switch for switch in one.keys() | other.keys() if one.get(switch) != other.get(switch)}
