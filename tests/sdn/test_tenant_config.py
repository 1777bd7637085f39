"""Tenants of the configuration file: a good one, and bad ones with everything that is wrong named at once."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from braid_sdn.fabric.config import ConfigError, read
from braid_sdn.fabric.tenants import DEFAULT, NOBODY, TAGS, Tenants

SWITCHES = """
[[switch]]
id = "0000000000000001"
name = "A"
[[switch]]
id = "0000000000000002"
name = "B"
"""
GOOD = f"""{SWITCHES}
[[link]]
between = ["A:eth1", "B:eth1"]
[[link]]
between = ["A:eth2", "B:eth2"]
capacity = "10 Mbit/s"
[[tenant]]
name = "blue"
tags = "2000-2499"
ports = ["A:eth3", "B:4"]
[[tenant]]
name = "red"
tags = "100-107"
trunks = ["A:eth8:30"]
[[tenant]]
name = "green"
tags = "200-299"
trunks = ["A:eth8:31", "B:8:30"]
[[host]]
mac = "02:00:00:00:00:01"
switch = "A"
port = "eth3"
addresses = ["10.0.0.1"]
[[host]]
mac = "02:00:00:00:00:02"
switch = "A"
port = "eth8"
vid = 30
addresses = ["10.0.0.1"]
"""


def errors(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "fabric.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read(path)
    return [line.removeprefix(f"{path}: ") for line in str(refused.value).splitlines()]


def test_a_good_one_says_whose_each_port_and_each_tag_is(tmp_path: Path) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(GOOD)
    settings = read(path).settings
    known = settings.tenants
    assert [known.at("A", "eth3", 7), known.at("B", "eth9", 4), known.at("B", "eth3", 3)] == [2000, 2000, DEFAULT]
    assert (known.at("A", "eth1", 1), known.at("B", "eth2", 2)) == (NOBODY, NOBODY)
    assert [known.of_tag(tag) for tag in (2000, 2499, 2500, 100, 107, 108)] == [
        2000,
        2000,
        DEFAULT,
        100,
        100,
        DEFAULT,
    ]
    assert len(known.tags(DEFAULT)) + 500 + 8 + 100 == len(TAGS)
    assert [known.at("A", "eth8", 8, vid) for vid in (0, 30, 31, 32)] == [NOBODY, 100, 200, NOBODY]
    assert known.trunk("B", "eth7", 8) == {30: 200}
    assert (known.trunk("B", "eth2", 2), known.at("B", "eth9", 4, 30)) == ({}, NOBODY)
    # By their names they are an end of a link, and a tenant's port.
    assert (known.trunk("B", "eth2", 8), known.trunk("B", "4", 8)) == ({}, {})
    assert [(*host.addresses, host.vid) for host in settings.hosts] == [("10.0.0.1", 0), ("10.0.0.1", 30)]
    assert known.has_link([("A", "eth1")], [("B", "eth1")])
    assert not known.has_link([("A", "eth1")], [("B", "eth2")])
    assert [each.capacity for each in settings.links] == [math.inf, 10e6]


def test_without_tenants_there_are_none_and_all_tags_are_of_nobody() -> None:
    known = read(None).settings.tenants
    assert (bool(known), known.numbers, known.tags(NOBODY), known.digest({})) == (False, (NOBODY,), TAGS, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[tenant]]\ntags = "2000-2499"', ["tenant 1.name: is missing"]),
        (
            '[[tenant]]\nname = "default"\ntags = "2000-2499"',
            ["tenant 1.name: must be a word other than 'default', without / in it, not 'default'"],
        ),
        (
            '[[tenant]]\nname = ""\ntags = "2000-2499"',
            ["tenant 1.name: must be a word other than 'default', without / in it, not ''"],
        ),
        (
            '[[tenant]]\nname = "blue"\ntags = "4000-4095"',
            ["tenant 1.tags: must be a range such as \"2000-2499\", of 2 to 4094, not '4000-4095'"],
        ),
        (
            '[[tenant]]\nname = "blue"\ntags = "2000-2006"',
            ["tenant 1.tags: has 7 tags, and 8 are needed at least"],
        ),
        (
            '[[tenant]]\nname = "blue"\ntags = "2000-2499"\n[[tenant]]\nname = "red"\ntags = "2499-2600"',
            ["tenant 2.tags: 2499-2499 is of tenant 'blue' too: give them ranges of their own"],
        ),
        (
            '[[tenant]]\nname = "blue"\ntags = "2000-2499"\n[[tenant]]\nname = "blue"\ntags = "100-200"',
            ["tenant 2.name: 'blue' is given twice"],
        ),
        (
            '[[tenant]]\nname = "blue"\ntags = "2-4094"',
            [
                "tenant: all ranges together leave 0 tags to the default tenant, which has all ports that are not"
                " listed: leave 8 or more"
            ],
        ),
        (
            '[[tenant]]\nname = "blue"\ntags = "100-200"\nports = ["A:eth3", "C:eth1", "A"]\n'
            '[[tenant]]\nname = "red"\ntags = "2000-2499"\nports = ["A:eth3"]',
            [
                "tenant 1.ports: 'C:eth1' is no port of a known switch: write SWITCH:PORT",
                "tenant 1.ports: 'A' is no port of a known switch: write SWITCH:PORT",
                "tenant 2.ports: A:eth3 is listed twice (tenant 'blue'): list it once",
            ],
        ),
        (
            '[[link]]\nbetween = ["A:eth1", "B:eth1"]\n'
            '[[tenant]]\nname = "blue"\ntags = "100-200"\nports = ["A:eth1"]',
            ["tenant 'blue'.ports: A:eth1 is an end of a [[link]]: give the tenant another port, or the link"],
        ),
        (
            '[[tenant]]\nname = "blue"\ntags = "100-200"\ntrunks = ["A:eth3", "A:eth3:4095", "C:eth1:7"]',
            [
                f"tenant 1.trunks: {each!r} is no port of a known switch with a VID of 1 to 4094: "
                "write SWITCH:PORT:VID"
                for each in ("A:eth3", "A:eth3:4095", "C:eth1:7")
            ],
        ),
        (
            '[[link]]\nbetween = ["A:eth1", "B:eth1"]\n[[edge]]\nname = "e"\nswitch = "B"\nport = "eth5"\n'
            '[[tenant]]\nname = "blue"\ntags = "100-200"\nports = ["A:eth2"]\n'
            'trunks = ["A:eth1:7", "A:eth2:7", "B:eth5:7", "B:eth6:7", "B:eth6:8"]\n'
            '[[tenant]]\nname = "red"\ntags = "2000-2499"\ntrunks = ["B:eth6:7"]',
            [
                "tenant 'blue'.trunks: A:eth1 is an end of a [[link]]: a trunk is nothing else",
                "tenant 'blue'.trunks: A:eth2 is a port of tenant 'blue': a trunk is nothing else",
                "tenant 'blue'.trunks: B:eth5 is the place of edge 'e': a trunk is nothing else",
                "tenant 'blue'.trunks: B:eth6 has two VIDs: a tenant has one at each trunk",
                "tenant 'red'.trunks: VID 7 at B:eth6 is of tenant 'blue' too: give each another one",
            ],
        ),
        (
            '[[host]]\nmac = "02:00:00:00:00:02"\nswitch = "A"\nport = "eth8"\n'
            '[[tenant]]\nname = "blue"\ntags = "100-200"\ntrunks = ["A:eth8:30"]',
            [
                "host 1.port: A:eth8 is an end of a [[link]], or a trunk, of which vid must say one that a tenant has"
                " there"
            ],
        ),
        (
            "discovered_links = true\n",
            ["discovered_links: is about tenants, and there is no [[tenant]]"],
        ),
        (
            '[[link]]\nbetween = ["A:eth1", "B"]',
            ["link 1.between: names a port of one switch alone: write SWITCH:PORT for both"],
        ),
        ('[[link]]\nbetween = ["A", "B"]', ["link 1.capacity: is missing"]),
        (
            '[[switch]]\nid = "0123456789abcdef"\nname = "wide"\n[[tenant]]\nname = "blue"\ntags = "100-200"',
            [
                "switch 'wide'.id: its id has more than 12 digits, which leaves no room for a tenant's number:"
                " give it another one"
            ],
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, said: list[str]) -> None:
    before, after = ("", text) if not text.startswith("discovered") else (text, "")
    assert errors(tmp_path, f"{before}{SWITCHES}{after}") == said


def test_the_stamp_is_of_all_by_which_packets_pass(tmp_path: Path) -> None:
    def digest(text: str) -> int:
        path = tmp_path / "fabric.toml"
        path.write_text(text)
        settings = read(path).settings
        return settings.tenants.digest(settings.names)

    changes = (
        ("2000-2499", "2000-2498"),
        ('"A:eth3"', '"A:eth5"'),
        ('"A:eth2", "B:eth2"', '"A:eth2", "B:eth5"'),
        ('"A:eth8:31"', '"A:eth8:32"'),
    )
    swapped = GOOD.replace('name = "A"', 'name = "X"').replace('name = "B"', 'name = "A"').replace('"X"', '"B"')
    made = [digest(GOOD), digest(swapped), *(digest(GOOD.replace(*each)) for each in changes)]
    assert len(set(made)) == len(made)
    assert digest(GOOD.replace('"blue"', '"azure"').replace("10 Mbit/s", "20 Mbit/s")) == made[0]


def test_the_vid_of_a_host_needs_tenants_and_is_one(tmp_path: Path) -> None:
    without = GOOD[: GOOD.index("[[tenant]]")] + GOOD[GOOD.index("[[host]]") :].replace('["10.0.0.1"]', "[]")
    (text,) = errors(tmp_path, without)
    assert "host 2.vid: is for a trunk of a [[tenant]]" in text
    (text,) = errors(tmp_path, GOOD.replace("vid = 30", "vid = 5000"))
    assert "host 2.vid: must be 1 to 4094, not 5000" in text


def test_links_alone_are_no_tenants(tmp_path: Path) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(GOOD[: GOOD.index("[[tenant]]")])
    assert read(path).settings.tenants == Tenants()


def test_a_port_of_a_switch_with_a_wide_id_is_refused(tmp_path: Path) -> None:
    text, *_ = errors(tmp_path, GOOD.replace('"B:4"', '"0123456789abcdef:4"'))
    assert "tenant 'blue': switch 0123456789abcdef: its id has more than 12 digits" in text
