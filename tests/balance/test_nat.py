"""RFC 4787, 5382 and 5508: the lab's NAT behaviours, which docs/nat.md lists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braid_lab.datapath import Datapath
from braid_lab.experiments.balance.nat import fragments, host_sockets, icmp, tcp, timers, udp
from braid_lab.experiments.balance.nat.cases import Role, attempt, cases
from braid_lab.experiments.balance.nat.testbed import NatTestbed, bench
from braid_lab.experiments.openflow.deviations import reason
from braid_lab.net.open_vswitch import on_datapath
from braid_lab.product import repository

MODULES = (fragments, host_sockets, icmp, tcp, udp)
ALL = [*cases("gateway"), *cases("host")]


@pytest.fixture(scope="module", params=["gateway", "host"])
def machine(request: pytest.FixtureRequest) -> Iterator[tuple[Role, NatTestbed]]:
    role: Role = request.param
    with bench(role, offload=False) as made:
        yield role, made


def test_every_module_has_its_behaviours() -> None:
    assert {each.body.__module__ for each in ALL} == {each.__name__ for each in MODULES}


def test_behaviours_are_there_unless_their_lack_is_explained(machine: tuple[Role, NatTestbed]) -> None:
    role, made = machine
    missed = [
        f"{each.name} ({each.source}): {text}"
        for each in cases(role)
        for family in each.families
        if not each.deviation and (text := attempt(each.body, made, family))
    ]
    assert not missed, "\n".join(missed)


def test_an_explained_lack_is_real(machine: tuple[Role, NatTestbed]) -> None:
    """A deviation that no longer exists must be removed from the documentation."""
    role, made = machine
    there = [
        each.name
        for each in cases(role)
        for family in each.families[:1]
        if each.deviation and not attempt(each.body, made, family)
    ]
    assert not there


@pytest.mark.parametrize(("role", "mode"), [("gateway", "packet-in"), ("host", "group")])
def test_by_open_vswitch_fragments_pass_and_hairpins_are_on_the_list(role: Role, mode: Datapath) -> None:
    """RFC 4787 REQ-14, and REQ-9, which is not kept."""
    tried = [each for each in cases(role) if "fragment" in each.name or each.name == "udp_hairpin"]
    with on_datapath(mode), bench(role, offload=False) as machine:
        missed = {each.name for each in tried for family in each.families if attempt(each.body, machine, family)}
    assert len(tried) > len(missed)
    assert missed == {each.name for each in tried if reason(each.name, mode)}


def test_all_behaviours_are_documented() -> None:
    text = (repository() / "docs/nat.md").read_text()
    names = {each.name for each in ALL} | {each.name for each in timers.TIMES}
    assert not {name for name in names if f"`{name}`" not in text}
