"""Static binaries for other machines, and the small ones for routers: they stand alone, run, and say what they lack.

`make package-test` builds them first.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from braid_lab.process import Output, run
from braid_lab.product import repository

MACHINES = ("x86_64", "aarch64")
PROFILES = ("release", "router")

#: Bytes that a router's flash has for it.
ROUTER_BYTES = 8_000_000

#: What a router's binary has no room for.
LEFT_OUT = ("completions", "edge", "emulate", "emulate-ctl", "hub", "keygen", "man", "top")


def binary(machine: str, profile: str) -> Path:
    return repository() / f"target/{machine}-unknown-linux-musl/{profile}/braid"


def braid(machine: str, profile: str, *words: str | Path) -> Output:
    """Run one, by an emulated processor if it is not this machine's."""
    emulator = [] if machine == platform.machine() else [f"qemu-{machine}-static"]
    return run([*emulator, binary(machine, profile), *words], check=False)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("machine", MACHINES)
def test_it_needs_no_library_and_no_loader(machine: str, profile: str) -> None:
    said = run(["readelf", "--wide", "--program-headers", "--dynamic", binary(machine, profile)]).stdout
    assert "LOAD" in said
    assert "INTERP" not in said
    assert "(NEEDED)" not in said


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_command_line_works(machine: str, profile: str, tmp_path: Path) -> None:
    said = braid(machine, profile, "version")
    assert (said.status, said.stdout.split()[0]) == (0, "braid")
    said = braid(machine, profile, "--help")
    assert said.status == 0
    assert "\n  status " in said.stdout
    good = tmp_path / "good.toml"
    good.write_text('policy = "wrr"\n')
    assert "good (uplinks found by their default routes" in braid(machine, profile, "config", "check", good).stdout
    bad = tmp_path / "bad.toml"
    bad.write_text('polcy = "wrr"\n')
    said = braid(machine, profile, "config", "check", bad)
    assert said.status == 1
    assert "policy" in said.stderr
    said = braid(machine, profile, "doctor", "--json")
    assert said.status in (0, 1, 4), said.text
    assert "kernel" in {finding["code"] for finding in json.loads(said.stdout)["findings"]}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_static_one_has_everything(machine: str, tmp_path: Path) -> None:
    said = braid(machine, "release", "man", tmp_path)
    assert said.status == 0, said.text
    assert (tmp_path / "braid-hub-invite.1").stat().st_size > 0
    assert "_braid" in braid(machine, "release", "completions", "bash").stdout
    for word in LEFT_OUT:
        assert braid(machine, "release", word, "--help").status == 0


@pytest.mark.parametrize("machine", MACHINES)
def test_a_routers_fits_and_says_what_it_has_not(machine: str) -> None:
    assert binary(machine, "router").stat().st_size <= ROUTER_BYTES
    shown = braid(machine, "router", "--help").stdout
    for word in LEFT_OUT:
        assert f"\n  {word} " not in shown
        said = braid(machine, "router", word, "--help")
        assert said.status == 2
        assert f"this build has no braid {word}" in said.stderr


@pytest.mark.parametrize("machine", MACHINES)
def test_a_routers_has_no_datapath_of_open_vswitch(machine: str, tmp_path: Path) -> None:
    asks = tmp_path / "asks.toml"
    asks.write_text('[datapath]\nkind = "openflow"\n')
    said = braid(machine, "router", "config", "check", asks)
    assert said.status == 1
    assert "this build has no datapath of Open vSwitch" in said.stderr
    assert braid(machine, "release", "config", "check", asks).status == 0
