"""`braid sdn fabric doctor` beside real bridges of Open vSwitch, and the commands that it gives."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace

import pytest

from braid_lab.fabric.controller import SDN, configuration, controller
from braid_lab.fabric.ovs import OvsNetwork, ovs_network
from braid_lab.fabric.shapes import two_paths
from braid_lab.process import Output, Process, wait_until
from braid_lab.product import DEGRADED

SHAPE = replace(two_paths(mbit=1000, delay_ms=0), stations=())


@pytest.fixture
def net() -> Iterator[OvsNetwork]:
    with ovs_network(SHAPE) as made:
        yield made


def doctor(net: OvsNetwork, *words: str) -> Output:
    database = f"unix:{net.folder}/db.sock"
    return net.place.run([*SDN, "doctor", "--run-dir", net.folder, "--db", database, *words], check=False)


def levels(net: OvsNetwork, *words: str) -> dict[str, str]:
    told = json.loads(doctor(net, *words, "--json").stdout)
    return {each["code"]: each["level"] for each in told["findings"]}


def test_its_commands_mend_what_it_finds(net: OvsNetwork) -> None:
    assert levels(net) == {"controller": "ok", "not-connected": "warn"}
    with controller(net.place, net.folder, configuration(SHAPE)) as fabric:
        wait_until(lambda: len(fabric.api_get("status")["links"]) == 8, what="all links", timeout=60)
        wait_until(lambda: not fabric.codes(), what="good health", timeout=60)
        said = doctor(net, "--config", str(fabric.config))
        assert said.status == 0, said.text
        assert "ok    A: connected, and configured as it should be\n" in said.stdout
        net.vsctl("set-fail-mode", "A", "standalone", "--", "set", "bridge", "B", "rstp_enable=true")
        net.vsctl("--no-wait", "add-br", "other", "--", "set", "bridge", "other", "datapath_type=netdev")
        net.place.run(["ip", "link", "set", "dev", "A-P", "mtu", "9000"])
        wanted = {"fail-mode", "spanning-tree", "mtu", "other-bridges"}
        wait_until(lambda: wanted <= levels(net).keys(), what="the findings", timeout=20)
        said = doctor(net)
        assert said.status == DEGRADED
        assert (
            "WARN  A: packets of up to 9000 bytes that come by one port are lost at others: A-Q 1500\n" in said.stdout
        )
        for line in said.stdout.splitlines():
            _, _, fix = line.partition("fix: ")
            program, *words = shlex.split(fix.partition(",")[0]) or [""]
            if program == "ovs-vsctl":
                net.vsctl(*words)
            elif program == "ip":
                net.place.run([program, *words])
        wait_until(lambda: doctor(net).status == 0, what="nothing to be left", timeout=60)


def test_what_keeps_a_controller_from_starting_is_named(net: OvsNetwork) -> None:
    config = net.folder / "broken.toml"
    config.write_text("host_lifetime = 3\nlisten = true\n")
    # The switches call it, and it must be there after that.
    listener = (
        "import signal, socket; s = socket.create_server(('127.0.0.1', 6653)); print('there', flush=True)\n"
        "signal.pause()"
    )
    with Process(["python3", "-c", listener], log=net.folder / "listener", namespace=net.place.name) as process:
        process.wait_output("^there", timeout=20)
        said = doctor(net, "--config", str(config))
    assert said.status == 1
    assert f"FAIL  {config}: listen: " in said.stdout
    assert f"FAIL  {config}: host_lifetime: " in said.stdout
    assert "switches cannot be heard at 127.0.0.1:6653: Address already in use\n" in said.stdout
    assert "fix: ss -ltnp 'sport = :6653' names what has the port\n" in said.stdout


def test_a_database_that_is_gone_is_named(net: OvsNetwork) -> None:
    net.switches.kill_database()
    assert levels(net) == {"controller": "ok", "open-vswitch": "warn"}
