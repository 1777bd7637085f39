"""The tutorial with Mininet, as far as it can be followed without Mininet: its files agree, its commands exist.

`topology` runs the Python of the page with stand-ins for the classes of Mininet, which note switches and links as it
numbers their ports.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from braid_lab.process import run
from braid_lab.product import binary, repository
from braid_sdn.cli import parser
from braid_sdn.fabric.config import read

PAGE = (repository() / "docs/tutorial/mininet.md").read_text()
FABRIC_PAGE = (repository() / "docs/fabric.md").read_text()


def written_file(name: str) -> str:
    """Return a file that the page has its reader write."""
    (text,) = re.findall(rf"^cat > \$D/{re.escape(name)} <<'END'\n(.*?)^END$", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def commands() -> Iterator[str]:
    """Yield what the page has its reader type at either prompt, each command by itself."""
    for typed in re.findall(r"^(?:# |mininet> (?:sh |e[12] )?)(.*)$", PAGE, re.MULTILINE):
        yield from (each.strip() for each in typed.removesuffix("&").split(";"))


@dataclass
class Topo:
    """Notes what `build` adds."""

    switches: list[str] = field(default_factory=list)
    #: Each link's ends as node and device, and its rate in Mbit/s or None.
    links: list[tuple[tuple[str, str], tuple[str, str], int | None]] = field(default_factory=list)
    devices: dict[str, int] = field(default_factory=dict)

    def addSwitch(self, name: str, **options: Any) -> str:  # noqa: N802
        # A Box is Mininet's switch and not the controller's.
        if "cls" not in options:
            self.switches.append(name)
        return name

    def addHost(self, name: str) -> str:  # noqa: N802
        return name

    def addLink(self, one: str, other: str, *, cls: type, bw: int | None = None) -> None:  # noqa: N802
        assert cls.__name__ == "TCULink", "with another one TCP does not pass userspace switches"
        self.links.append((self._end(one), self._end(other), bw))

    def _end(self, node: str) -> tuple[str, str]:
        number = self.devices[node] = self.devices.get(node, 0) + 1
        return node, f"{node}-eth{number}"


@pytest.fixture
def topology(monkeypatch: pytest.MonkeyPatch) -> Topo:
    for module, name, kind in (
        ("link", "TCULink", type("TCULink", (), {})),
        ("node", "Switch", type("Switch", (), {})),
        ("topo", "Topo", Topo),
    ):
        made = ModuleType(f"mininet.{module}")
        setattr(made, name, kind)
        monkeypatch.setitem(sys.modules, f"mininet.{module}", made)
    monkeypatch.setitem(sys.modules, "mininet", ModuleType("mininet"))
    names: dict[str, Any] = {"__name__": "two_paths"}
    exec(compile(written_file("two_paths.py"), "two_paths.py", "exec"), names)  # noqa: S102
    # As `mn --topo` finds it.
    (called,) = re.findall(r"--topo (\w+)", PAGE)
    made_topology = names["topos"][called]()
    made_topology.build()
    assert isinstance(made_topology, Topo)
    return made_topology


def test_the_configuration_is_that_of_the_topology(topology: Topo, tmp_path: Path) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(written_file("fabric.toml"))
    settings = read(path).settings
    # Mininet takes a switch's id from the digits of its name.
    assert settings.names == {int(name.removeprefix("s")): name for name in topology.switches}
    inner = {
        frozenset((one[0], other[0])): 1e6 * bw
        for one, other, bw in topology.links
        if bw is not None and {one[0], other[0]} <= set(topology.switches)
    }
    assert {frozenset(link.between): link.capacity for link in settings.links} == inner
    boxes = {one[0]: other for one, other, _ in topology.links if other[0] in topology.switches and one[0][0] == "e"}
    assert {edge.name: (edge.switch, edge.port) for edge in settings.edges} == boxes


def test_edges_run_between_host_and_switch(topology: Topo) -> None:
    around = {end: other for one, two, _ in topology.links for end, other in ((one, two), (two, one))}
    found = re.findall(
        r"^mininet> (e\d) braid edge run --name (e\d) --inside (\S+) --outside (\S+) ", PAGE, re.MULTILINE
    )
    assert len(found) == 2
    for node, name, inside, outside in found:
        assert node == name
        assert around[node, inside][0].startswith("h")
        assert around[node, outside][0].startswith("s")


def test_its_commands_exist() -> None:
    asked = [shlex.split(each) for each in commands() if each.startswith("braid sdn ")]
    assert len(asked) >= 8
    for words in asked:
        # The shell's own words are no argument.
        end = next((place for place, word in enumerate(words) if re.match(r"\d?>", word)), len(words))
        parser().parse_args(words[2:end])
    shown = run([binary(), "edge", "run", "--help"]).stdout
    edges = [each for each in commands() if each.startswith("braid edge run ")]
    assert edges
    for option in {word for each in edges for word in each.split() if word.startswith("--")}:
        assert option in shown


@pytest.mark.parametrize("page", [PAGE, FABRIC_PAGE], ids=["tutorial", "how-to"])
def test_mininets_clean_up_never_meets_the_machines_own_files(page: str) -> None:
    # A mount namespace alone has the machine's /tmp, of which Mininet deletes *.log and *.out.
    assert page.index("unshare --pid --mount --net") < page.index("mount -t tmpfs tmpfs /tmp")
