"""Keeps each switch's rules of the access control list, and replaces a list packet by packet by another one.

At every moment each packet is decided by one of the two lists, as a whole:

- A new list goes into a block above the old one's, its highest rule first. A packet whose rule is not there yet finds
  the old list, which is still whole. Once the new block is, the old one does nothing and is deleted.
- If there is no block above, the new list goes into one below, which does nothing yet. Then the old one is deleted,
  its lowest rule first: a packet whose rule is gone finds the new list, since all rules below that one are gone too.
- Where hosts come to a place or leave it, rules for them are added to the list's block, the highest first, and then
  others deleted, the lowest first. The first entry that matches a packet by either set of hosts is the first one by
  one of them. Those of hosts that are at no place any more are deleted at once: no rule takes over from them, and
  hosts may come all the time.

The old block is deleted by the updater, once the switch has said that it has the new one, and refused none of its
rules. As long as it refuses some, as where its table is full, the old list decides what they would. Blocks of other
lists are deleted at once, so there are mostly two.

That takes a switch that carries out messages in their order, as Open vSwitch does. A switch without rules gets the
list before anything that forwards, and its default first: if that refuses packets, those whose entry has no room are
refused, too.

A switch whose ports are all links refuses hosts' packets as long as there is a list: a host may appear at another
port there before the next plan, or while no controller runs.

Where packets enter decides them, so switches need not change lists at the same time: those that have one, or forward
without, follow a number of rules at a time, each switch as a whole, and those first that waited longest.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.acl import Acl, Action, DecisionCounters, Place
from braid_sdn.fabric.plan.plan import Edge, Host
from braid_sdn.fabric.switches import acl as rules
from braid_sdn.fabric.switches.acl import BLOCKS, MAX_RULES, LocalAcl
from braid_sdn.fabric.switches.rules import INGRESS, PATHS, Rules, base
from braid_sdn.openflow.messages import AddRule, DeleteRule, FlowStats, Rule, RuleKey

#: The rule by which a switch forwards hosts' packets.
_FORWARDS = next(rule.key for rule in base() if rule.table == INGRESS and rule.priority == rules.FIRST_OF_HOSTS)

#: The list of switches without ports of hosts.
_NOTHING = Acl((), Action.DENY)

#: Lists of rules that are kept for the next switch.
MAX_MADE = 64


@dataclass(frozen=True)
class Surroundings:
    """All that a list's rules depend on besides the list."""

    #: Ports of links, and all ports, of each switch.
    links: Mapping[int, frozenset[int]]
    ports: Mapping[int, Collection[int]]
    edges: tuple[Edge, ...]
    #: Those come first that are left out last, where a place has too many.
    hosts: Collection[Host]
    #: Switch and port of places that are connected; without a port it is all of the switch.
    places: Mapping[Place, tuple[int, int | None]]


@dataclass
class Change:
    """Changes of rules, in their order."""

    added: list[tuple[int, Rule]] = field(default_factory=list)
    #: These come after all that are added.
    deleted: list[tuple[int, RuleKey]] = field(default_factory=list)
    #: Switches whose counters are to be read after what is added, and before what is deleted.
    counted: list[int] = field(default_factory=list)
    #: Keys at which the target is another one than before.
    keys: dict[int, set[RuleKey]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Ports:
    """Ports of a switch on which the rules of a list depend."""

    links: frozenset[int]
    edges: tuple[int, ...]
    #: True if there are no others than links.
    is_inner: bool


@dataclass
class _Placed:
    """A list at one switch."""

    local: LocalAcl
    #: The ports there, and the hosts and places, that its rules depend on.
    made_of: tuple[object, ...]
    #: All rules that the switch is to have; the same object as long as it stays connected.
    target: Rules
    #: Rules of its block, the highest first, and all others.
    block: list[Rule]
    besides: list[Rule]
    #: False as long as nobody knows which rules the switch has.
    is_compared: bool
    #: Packets of each rule when it was counted last.
    packets: dict[RuleKey, int] = field(default_factory=dict)
    #: Rules of the same list that it took the place of, as where a host was learned: their last packets count, too.
    former: set[RuleKey] = field(default_factory=set)
    #: False if the entries of its rules are those of another list: one before, where the list has too many rules.
    is_counted: bool = True
    #: Other blocks that decide packets as long as its own is not whole.
    other_blocks: frozenset[int] = frozenset()


@dataclass
class AclPlacement:
    """The list at all switches."""

    acl: Acl = field(default_factory=Acl)
    #: The table to which packets of edges with a tag go.
    edge_table: int = PATHS
    #: Packets that each entry decided.
    counted: DecisionCounters = field(default_factory=DecisionCounters)
    #: Rules that the list would have at switches where these are too many.
    crowded: dict[int, int] = field(default_factory=dict)
    #: Hosts of each place that it means at those where that makes it fit: those that were learned first.
    shortened: dict[int, int] = field(default_factory=dict)
    #: True if switches wait for the next call of `follow`, and have another list, or none, until then.
    is_behind: bool = False
    #: True if one of them has no list yet for a port of hosts or of an edge.
    has_unlisted: bool = False
    #: Switches whose counters were asked for since all others' were.
    _counted: set[int] = field(default_factory=set)
    #: Switches that listed rules of a list, and are to have none as far as is known.
    _leftover: set[int] = field(default_factory=set)
    #: The target and the ports of each switch as it was followed last.
    _followed: dict[int, tuple[Rules, _Ports]] = field(default_factory=dict)
    _placed: dict[int, _Placed] = field(default_factory=dict)
    #: Rules by what they are made of and their block, which many switches have in common; and the hosts of places
    #: for which they were made.
    _made: dict[tuple[object, ...], list[Rule]] = field(default_factory=dict)
    _made_for: Mapping[Place, tuple[str, ...]] = field(default_factory=dict)
    _places: Mapping[Place, tuple[int, int | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Count for the list that it begins with."""
        self.counted = DecisionCounters(self.acl)

    @property
    def switches(self) -> list[int]:
        """The switches with rules of the list: those with ports of hosts."""
        return [switch for switch, placed in self._placed.items() if placed.local.acl is not _NOTHING]

    def poll_counted(self, most: int) -> list[int]:
        """Return the switches whose counters are to be read next: one, and more while these have `most` rules."""
        switches = self.switches
        waiting = [switch for switch in switches if switch not in self._counted] or switches
        if len(waiting) == len(switches):
            self._counted.clear()
        chosen: list[int] = []
        for switch in waiting:
            if chosen and self.rules_at(switch) > most:
                break
            most -= self.rules_at(switch)
            chosen.append(switch)
        self._counted.update(chosen)
        return chosen

    def rules_at(self, switch: int) -> int:
        """Return how many rules a switch has for the list."""
        placed = self._placed.get(switch)
        return len(placed.block) + len(placed.besides) if placed is not None else 0

    def change(self, acl: Acl) -> None:
        """Take another list; `follow` replaces the one before."""
        self.acl = acl
        self._made.clear()
        self.counted.change(acl)

    def is_nowhere(self, target: Mapping[int, Rules]) -> bool:
        """Return true if there is no list, nothing is left of one, and `follow` has seen these switches so."""
        if not self.acl.permits_all or self._placed or self._leftover or self.is_behind:
            return False
        followed = self._followed
        return followed.keys() == target.keys() and all(
            target[switch] is each[0] for switch, each in followed.items()
        )

    def follow(
        self,
        target: Mapping[int, Rules],
        installed: Mapping[int, Rules],
        around: Surroundings,
        *,
        most: int = sys.maxsize,
        is_told: bool = True,
        has_whole_list: Callable[[int], bool] = lambda _: True,
    ) -> Change:
        """Put the list into what switches are to have, and return what is to be sent for that at once.

        `has_whole_list` says whether a switch has all rules of the list that it was to have last.

        Once that is `most` rules or more, the other switches wait for the next call; but not those that are new or
        have other ports, unless no switch is told of any other rule meanwhile (`is_told`): packets would enter there
        that no list decides.
        """
        change, left = Change(), most
        self.is_behind = self.has_unlisted = False
        behind = _behind(self.acl, around)
        # Each switch compares these, which is quick with the same objects.
        if behind != self._made_for:
            self._made.clear()
            self._made_for = behind
        if around.places != self._places:
            self._places = around.places
        edges: dict[int, list[int]] = {}
        for edge in around.edges:
            edges.setdefault(edge.port.switch, []).append(edge.port.port)
        self._placed = {switch: each for switch, each in self._placed.items() if switch in target}
        self._followed = {switch: each for switch, each in self._followed.items() if target.get(switch) is each[0]}
        self.crowded = {switch: count for switch, count in self.crowded.items() if switch in target}
        self.shortened = {switch: hosts for switch, hosts in self.shortened.items() if switch in target}
        # The first one of these would be told of each host, and others of none, where many come.
        for switch in [*(each for each in target if each not in self._placed), *self._placed]:
            wanted = target[switch]
            links = around.links.get(switch, frozenset())
            here = tuple(sorted(edges.get(switch, ())))
            known = self._placed.get(switch)
            has = installed.get(switch)
            is_inner = not here and links.issuperset(around.ports.get(switch, ()))
            ports = _Ports(links, here, is_inner)
            made_of = (ports, *(() if is_inner else (self._places, self._made_for)))
            has_list = not self.acl.permits_all
            acl = _NOTHING if is_inner else self.acl
            if known is None:
                is_done = not has_list and switch not in self._leftover
            else:
                is_same = known.target is wanted and (known.is_compared or has is None)
                is_done = has_list and is_same and known.local.acl is acl and known.made_of == made_of
            # Those that follow the list already need not wait, and cost nothing.
            is_unlisted = self._followed.get(switch) != (wanted, ports)
            if not is_done and left <= 0 and not (is_told and is_unlisted):
                self.is_behind = True
                self.has_unlisted |= is_unlisted
                continue
            self._followed[switch] = wanted, ports
            if not is_done:
                local = None
                if has_list:
                    entries = tuple(rules.local_entries(acl, self._places, switch, self._made_for))
                    local = LocalAcl(acl, entries, links, here, self.edge_table)
                left -= self._place(change, switch, wanted, has, local, made_of, is_whole=has_whole_list(switch))
        return change

    def restore(self, switch: int, target: Mapping[int, Rules], has: Iterable[Rule]) -> list[AddRule | DeleteRule]:
        """Return what a switch that told all of its rules lacks of the list, and has of others above it, in order."""
        known, listed = self._placed.get(switch), {rule.key: rule for rule in has}
        if known is None or target.get(switch) is not known.target:
            if any(map(rules.is_of_list, listed.values())):
                self._leftover.add(switch)
            return []
        change = Change()
        own = rules.block_of(known.block[0])
        above = {rules.block_of(rule) for rule in listed.values() if rules.is_of_list(rule)} - set(range(own + 1))
        if not known.is_compared or above - known.other_blocks:
            self._place(change, switch, known.target, listed, known.local, known.made_of)
            known = self._placed[switch]
        block = _in_order(known.block, listed)
        missing = [rule for rule in (*known.besides, *block) if listed.get(rule.key) != rule]
        return [*map(AddRule, missing), *(DeleteRule(key) for _, key in change.deleted)]

    def handle_counters(self, switch: int, told: Iterable[FlowStats]) -> None:
        """Count the packets of each entry at a switch."""
        known = self._placed.get(switch)
        # Entries of the list before have other numbers.
        if known is None or known.local.acl is not self.acl or not known.is_counted:
            return
        mine, listed = {rule.key for rule in known.block} | known.former, set[RuleKey]()
        for each in told:
            key = each.rule.key
            if key not in mine or rules.entry_of(each.rule) > len(self.acl.entries):
                continue
            listed.add(key)
            # One that was added anew began anew.
            before = known.packets.get(key, 0)
            fresh = each.packets - before if each.packets >= before else each.packets
            known.packets[key] = each.packets
            if fresh:
                self.counted.add(rules.entry_of(each.rule), fresh)
        known.former &= listed

    def _place(
        self,
        change: Change,
        switch: int,
        target: Rules,
        has: Rules | None,
        local: LocalAcl | None,
        made_of: tuple[object, ...] = (),
        *,
        is_whole: bool = True,
    ) -> int:
        """Put the list at a switch into its target, in a block that suits what the switch has.

        Without `is_whole` the list before is not in place yet. Returns how many rules were looked at.
        """
        before = self._placed.pop(switch, None)
        self._leftover.discard(switch)
        self.crowded.pop(switch, None)
        self.shortened.pop(switch, None)
        fitting = self._fitting(switch, local) if local is not None else None
        made = self._compiled(fitting, 0) if fitting is not None else []
        old = {key: rule for key, rule in (has or {}).items() if rules.is_of_list(rule)}
        is_counted, own = True, None
        if local is None:
            number, block, besides = -1, [], []
        elif fitting is not None:
            own = self._own_block(before, target, local, old)
            number = self._block(made, old, has) if own is None else own
            block, besides = self._compiled(fitting, number), rules.besides(local)
        else:
            # Better nothing passes than what nobody looked at. The list before may read more than this one.
            nothing = LocalAcl(_NOTHING, (), local.links, local.edges, self.edge_table)
            if before is not None and before.is_compared and before.target is target:
                block = before.block
                is_counted = before.is_counted and before.local.acl is local.acl
            else:
                block, is_counted = _latest(old), False
            if not block:
                made = rules.compiled(nothing)
                block = rules.moved(made, self._block(made, old, has))
            number = rules.block_of(block[0])
            besides = rules.besides(nothing) + rules.unfiltered(block, local.edges)
        wanted = {rule.key: rule for rule in (*besides, *_in_order(block, has or {}))}
        used = frozenset(map(rules.block_of, old.values()))
        others = used
        if before is not None and before.is_compared:
            is_whole = is_whole and all((has or {}).get(rule.key) == rule for rule in before.block)
            others = before.other_blocks
            if is_whole or not others:
                # In part it may be all that there is, such as its default.
                others = frozenset({rules.block_of(before.block[0])})
        if all((has or {}).get(rule.key) == rule for rule in block) and (is_whole or number in others):
            others = frozenset()
        keys = change.keys.setdefault(switch, set())
        mine = (*before.block, *before.besides) if before is not None else ()
        for key in {rule.key for rule in mine} | old.keys():
            if key not in wanted:
                keys.add(key)
                target.pop(key, None)
        for key, rule in wanted.items():
            if target.get(key) != rule or (has is not None and has.get(key) != rule):
                keys.add(key)
                target[key] = rule
        if has is not None:
            change.added += [(switch, rule) for key, rule in wanted.items() if has.get(key) != rule]
            spare = [rule for rule in old.values() if rules.block_of(rule) not in others | {number}]
            if own is not None and before is not None:
                spare += _of_gone_hosts(before, block, old, is_whole=is_whole)
            change.deleted += [(switch, rule.key) for rule in sorted(spare, key=lambda rule: rule.priority)]
        if local is not None:
            packets = before.packets if before is not None else {}
            former = set[RuleKey]()
            if is_counted and before is not None and before.is_counted and before.local.acl is local.acl:
                former = (before.former | {rule.key for rule in before.block}) - wanted.keys()
            if former:
                change.counted.append(switch)
            kept = {key: packets[key] for key in (wanted.keys() | former) & packets.keys()}
            self._placed[switch] = _Placed(
                local, made_of, target, block, besides, has is not None, kept, former, is_counted, others & used
            )
        return len(wanted) + len(mine) + len(old)

    def _fitting(self, switch: int, local: LocalAcl) -> LocalAcl | None:
        """Return a list that a switch has room for, with fewer hosts of places where there are many; None if none is.

        Hosts of one place, as of one that forges MACs there, are not to keep all switches from following the list.
        """
        has_hosts = any(each.targets is not None for each in local.entries)
        count = rules.count(local) if has_hosts else len(self._compiled(local, 0))
        if count <= MAX_RULES:
            return local
        self.crowded[switch] = count
        hosts = rules.most_hosts(local, MAX_RULES)
        if not hosts:
            return None
        self.shortened[switch] = hosts
        return rules.shortened(local, hosts)

    def _compiled(self, local: LocalAcl, block: int) -> list[Rule]:
        """Return the rules of a list at a switch, in a block."""
        if local.acl is not self.acl:
            # A switch that was not told of another list yet, which alone is kept.
            return rules.moved(rules.compiled(local), block)
        entries = tuple((each.number, each.port, each.targets) for each in local.entries)
        key = (entries, local.edges, block)
        made = self._made.get(key)
        if made is None:
            made = rules.compiled(local) if not block else rules.moved(self._compiled(local, 0), block)
            if len(self._made) >= MAX_MADE:
                self._made.clear()
            self._made[key] = made
        return made

    @staticmethod
    def _own_block(before: _Placed | None, target: Rules, local: LocalAcl, old: Rules) -> int | None:
        """Return the block of the list before if it is the same one with other hosts, which stays where it is."""
        if before is None or not before.is_compared or not before.is_counted or before.target is not target:
            return None
        number = rules.block_of(before.block[0])
        is_above = any(rules.block_of(rule) not in before.other_blocks | {number} for rule in old.values())
        return number if not is_above and local.differs_by_hosts(before.local) else None

    def _block(self, made: list[Rule], old: Rules, has: Rules | None) -> int:
        """Return the block of a list: where it is already, else one above all others, else the lowest free one."""
        used = Counter(map(rules.block_of, old.values()))
        for number in sorted(used, reverse=True):
            is_whole = used[number] == len(made)
            if is_whole and all((has or {}).get(rule.key) == rule for rule in rules.moved(made, number)):
                return number
        highest = max(used, default=-1)
        if highest + 1 < BLOCKS:
            return highest + 1
        free = [number for number in range(BLOCKS) if number not in used]
        # All are used where many controllers were killed, each during a change: rules take the place of others then.
        return free[0] if free else highest


def _latest(old: Rules) -> list[Rule]:
    """Return the rules, the highest first, of the highest block with a default: the list that decides packets."""
    numbers = [rules.block_of(rule) for rule in old.values() if rules.is_default(rule)]
    block = [rule for rule in old.values() if numbers and rules.block_of(rule) == max(numbers)]
    return sorted(block, key=lambda rule: -rule.priority)


def _of_gone_hosts(before: _Placed, block: list[Rule], old: Rules, *, is_whole: bool) -> list[Rule]:
    """Return the rules in a block that need no successor there: of hosts that it does not mean any more.

    Where the rules that it had before are all there (`is_whole`), also those of a host that are older than these.
    """
    own, wanted = rules.block_of(block[0]), {rule.key for rule in block}
    meant = {rule.match.eth_dst for rule in block}
    last = {rule.key for rule in before.block} if is_whole else old.keys()
    return [
        rule
        for key, rule in old.items()
        if key not in wanted and rules.block_of(rule) == own and (rule.match.eth_dst not in meant or key not in last)
    ]


def _in_order(block: list[Rule], has: Rules) -> list[Rule]:
    """Return a list's rules as they are sent: the highest first, but the default where no other list decides.

    That is a switch that does not forward. One that does, and has no list, permits all until the new one is whole.
    """
    if _FORWARDS in has or any(map(rules.is_of_list, has.values())):
        return block
    return sorted(block, key=lambda rule: not rules.is_default(rule))


def _behind(acl: Acl, around: Surroundings) -> dict[Place, tuple[str, ...]]:
    """Return the hosts of each place that is a target, in their order."""
    wanted = {each.target.place for each in acl.entries if each.target.place is not None}
    at = {around.places[place]: list[str]() for place in wanted if place in around.places}
    for host in around.hosts if at else ():
        for place in ((host.port.switch, None), (host.port.switch, host.port.port)):
            if place in at:
                at[place].append(host.mac)
    return {place: tuple(at[around.places[place]]) for place in wanted if place in around.places}
