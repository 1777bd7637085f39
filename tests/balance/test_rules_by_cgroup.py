"""Rules by control group, as seen by the servers that flows reach."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from braid_lab.control_groups import hierarchy, inside
from braid_lab.net.topology import Topology
from braid_lab.observe import by_uplink
from braid_lab.process import wait_until
from braid_lab.product import Braid
from conftest import StartBraid, on_every_datapath

SOMEBODY = 4711
#: Enough flows for a hash not to give all of them one uplink.
MANY = 16

RULES = """
policy = "rr"

[[rule]]
name = "exception"
cgroup = "/{top}/mail"
port = 80
uid = 4711
use = "dsl"

[[rule]]
name = "work"
cgroup = "/{top}"
use = "lte"

[[rule]]
name = "somebody"
uid = 4711
use = "dsl"

[[rule]]
name = "late"
cgroup = "/{top}-late"
use = "lte"
"""


@pytest.fixture
def top() -> Iterator[Path]:
    """A control group of this test, which is removed with those below and beside it."""
    group = hierarchy() / f"braid-test-{os.getpid()}"
    group.mkdir()
    yield group
    for each in sorted(group.parent.glob(f"{group.name}*/**"), reverse=True):
        each.rmdir()


@pytest.fixture
def daemon(net: Topology, start_braid: StartBraid, top: Path) -> Braid:
    file = net.scratch / "groups.toml"
    file.write_text(RULES.format(top=top.name))
    return start_braid(net, "--config", file)


def seen_from(net: Topology, group: Path, times: int = 4, user: int = 0, family: int = 4) -> dict[str, int]:
    """Return the uplinks of a program's connections."""
    asks = [sys.executable, "-m", "braid_lab.clients.whoami", "tcp", str(times), net.server(1, family)]
    as_user = ["setpriv", "--reuid", str(user), "--clear-groups", "--", *asks]
    return by_uplink(net, [tuple(each) for each in json.loads(net.host.run(inside(group, as_user)).stdout)])


def waits_for_group(daemon: Braid, name: str) -> bool:
    return any(name in each["text"] for each in daemon.json("status")["health"])


@on_every_datapath
@pytest.mark.usefixtures("daemon")
def test_a_rule_holds_for_its_group_and_those_below(net: Topology, top: Path) -> None:
    for family in (4, 6):
        assert seen_from(net, top, family=family) == {"dsl": 0, "lte": 4}
        # They are made after the rule.
        assert seen_from(net, top / "web" / "a b", family=family) == {"dsl": 0, "lte": 4}
    assert min(seen_from(net, hierarchy(), MANY).values()) > 0
    assert min(seen_from(net, top.with_name(f"{top.name}-other"), MANY).values()) > 0


@on_every_datapath
def test_the_first_of_the_rules_for_a_group_and_a_user_wins(
    net: Topology, start_braid: StartBraid, top: Path
) -> None:
    mail = top / "mail"
    mail.mkdir()
    file = net.scratch / "groups.toml"
    file.write_text(RULES.format(top=top.name))
    start_braid(net, "--config", file)
    only_dsl, only_lte = {"dsl": 4, "lte": 0}, {"dsl": 0, "lte": 4}
    assert seen_from(net, mail, user=SOMEBODY) == only_dsl
    assert seen_from(net, mail / "below", user=SOMEBODY) == only_dsl
    assert seen_from(net, mail) == only_lte
    assert seen_from(net, top, user=SOMEBODY) == only_lte
    assert seen_from(net, hierarchy(), user=SOMEBODY) == only_dsl


@on_every_datapath
def test_a_group_may_come_later_and_be_made_anew(net: Topology, daemon: Braid, top: Path) -> None:
    late = top.with_name(f"{top.name}-late")
    assert waits_for_group(daemon, late.name)
    for _ in range(2):
        late.mkdir()
        wait_until(lambda: not waits_for_group(daemon, late.name), what="the rule to find its group")
        assert seen_from(net, late / "unit") == {"dsl": 0, "lte": 4}
        # The other group keeps its rule.
        assert seen_from(net, top) == {"dsl": 0, "lte": 4}
        (late / "unit").rmdir()
        late.rmdir()
        wait_until(lambda: waits_for_group(daemon, late.name), what="the daemon to miss the group")
