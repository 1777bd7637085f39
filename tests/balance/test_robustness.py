"""Failures around a daemon: full disks, damaged files, wrong clocks, devices and addresses that change."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from braid_lab.net.topology import Topology
from braid_lab.observe import ask_tcp, by_uplink, differences, kernel_state, states
from braid_lab.process import Process, run, wait_until
from braid_lab.product import Braid, binary, unconfigured
from conftest import ROUND_ROBIN, StartBraid

SHARED = {"dsl": 2, "lte": 2}


@contextlib.contextmanager
def tiny_disk(location: Path, size: str) -> Iterator[Path]:
    """A small file system that is soon full."""
    location.mkdir()
    run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", location])
    try:
        yield location
    finally:
        run(["umount", "--lazy", location], check=False)


def fill(location: Path) -> None:
    """Leave no byte free."""
    with (location / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4096))


def test_a_full_disk_stops_nothing(net: Topology) -> None:
    before = kernel_state(net.host)
    with tiny_disk(net.scratch / "tiny", "256k") as disk:
        daemon = Braid(net.host, disk)
        daemon.up()
        try:
            fill(disk)
            assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == SHARED
            # This event is remembered, even if it cannot be written.
            net.host.ip("link set lte down")
            wait_until(lambda: states(daemon).get("lte") != "up", what="lte to be seen down")
            assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 4, "lte": 0}
            assert [each for each in daemon.json("events")["events"] if each.get("uplink") == "lte"]
            # A crash on a full disk: the daemon either comes back or reports why not, and flows go on.
            daemon.kill9()
            again = daemon.call("up", check=False)
            assert again.status == 0 or "space" in again.stderr, again.text
            assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 4, "lte": 0}
        finally:
            (disk / "ballast").unlink(missing_ok=True)
            daemon.down()
            lte = net.uplinks["lte"]
            net.host.ip(
                "link set lte up",
                f"address replace {lte.address6}/64 dev lte nodad",
                *(f"route replace {route}" for route in lte.defaults()),
            )
    assert differences(before, kernel_state(net.host)) == []


def recreate(net: Topology, name: str) -> None:
    """Recreate an uplink's device with its addresses and routes, as after a modem was replugged."""
    uplink = net.uplinks[name]
    far = uplink.far
    run(
        [
            *["ip", "link", "add", name, "netns", net.host.name, "up", "type", "veth"],
            *["peer", "name", far.device, "netns", far.namespace.name],
        ]
    )
    far.namespace.ip(
        f"link set {far.device} up",
        f"address add {uplink.gateway4}/24 dev {far.device}",
        f"address add fe80::1/64 dev {far.device} nodad",
        f"address add 2001:db8:{uplink.index}::1/64 dev {far.device} nodad",
    )
    net.host.ip(
        f"address add {uplink.address4}/24 dev {name}",
        f"address add {uplink.address6}/64 dev {name} nodad",
        *(f"route add {route}" for route in uplink.defaults()),
    )


def test_an_uplink_that_is_back_takes_flows_although_the_disk_is_full(net: Topology) -> None:
    def health(daemon: Braid) -> list[str]:
        return [each["code"] for each in daemon.json("status")["health"]]

    with tiny_disk(net.scratch / "crowded", "256k") as disk:
        daemon = Braid(net.host, disk)
        daemon.up(*ROUND_ROBIN)
        try:
            net.host.ip("link delete lte")
            wait_until(lambda: states(daemon).get("lte") != "up", what="lte to be missed")
            fill(disk)
            recreate(net, "lte")
            # It is up with the first of its two families.
            wait_until(
                lambda: by_uplink(net, ask_tcp(net.host, 4, net.server())) == SHARED, what="lte to be taken again"
            )
            assert "state-not-saved" in health(daemon)
            assert "network-change-failed" not in health(daemon)
            (disk / "ballast").unlink()
            wait_until(lambda: "state-not-saved" not in health(daemon), what="the state to be written", timeout=15)
            assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == SHARED
        finally:
            (disk / "ballast").unlink(missing_ok=True)
            daemon.down()


@pytest.mark.parametrize("word", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_interrupted_leaves_nothing(net: Topology, word: signal.Signals) -> None:
    before = kernel_state(net.host)
    run_dir = net.scratch / f"interrupted-{word}"
    kept = net.scratch / f"kept-{word}"
    words: list[str | Path] = [binary(), "--run-dir", run_dir, "--state-dir", kept, "up"]
    for number in range(5):
        with Process(words, log=net.scratch / f"up-{word}-{number}", namespace=net.host.name) as front:
            wait_until(lambda: (run_dir / "state.json").exists() or not front.running, what="the start", poll=0.001)
            front.signal(word)
            ended = front.wait(timeout=20)
        if ended.status != 0:
            break
        # The daemon had already ended.
        run([binary(), "--run-dir", run_dir, "down"], namespace=net.host.name)
    assert "interrupted" in ended.stderr
    assert "the machine is as it was" in ended.stderr
    assert differences(before, kernel_state(net.host)) == []
    said = run([binary(), "--run-dir", run_dir, "status"], namespace=net.host.name, check=False)
    assert said.status != 0


def test_starting_on_a_full_disk_is_refused_by_name(net: Topology) -> None:
    before = kernel_state(net.host)
    with tiny_disk(net.scratch / "full", "64k") as disk:
        fill(disk)
        daemon = Braid(net.host, disk)
        refused = daemon.call("up", check=False)
        if refused.status == 0:
            # It had room for all that it must keep.
            daemon.down()
        else:
            assert "space" in refused.stderr, refused.text
            assert "panicked" not in refused.text
            daemon.call("down", check=False)
    assert differences(before, kernel_state(net.host)) == []


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda text: text[: len(text) // 2],
    "foreign": lambda _: b'{"something": "else"}',
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_state_file_is_put_aside(net: Topology, start_braid: StartBraid, damage: str) -> None:
    daemon = start_braid(net, *ROUND_ROBIN)
    assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == SHARED
    before = [each for each in daemon.json("flows")["flows"] if each["protocol"] == "tcp"]
    daemon.kill9()
    state = daemon.run_dir / "state.json"
    state.write_bytes(DAMAGE[damage](state.read_bytes()))
    said = daemon.call("up", *ROUND_ROBIN)
    assert (daemon.run_dir / "state.json.broken").exists(), said.text
    # Flows in the kernel still refer to the same uplinks.
    after = {each["outer"]: each["uplink"] for each in daemon.json("flows")["flows"]}
    assert all(after.get(each["outer"], each["uplink"]) == each["uplink"] for each in before)
    assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == SHARED
    assert json.loads(state.read_text())


@pytest.mark.parametrize("seconds", [-100, 100_000])
def test_a_clock_that_is_elsewhere_confuses_nothing(net: Topology, start_braid: StartBraid, seconds: int) -> None:
    """A daemon whose clock is behind the kernel's stamps, or far ahead: flows work, no time is negative."""
    daemon = start_braid(net, *ROUND_ROBIN)
    assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == SHARED
    daemon.kill9()
    shifted = ["unshare", "--time", "--fork", f"--monotonic={seconds}", f"--boottime={seconds}", "--"]
    words = ["--run-dir", str(daemon.run_dir), "up", *ROUND_ROBIN, *unconfigured()]
    run([*shifted, str(binary()), *words], namespace=net.host.name)
    assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == SHARED
    flows = daemon.json("flows")["flows"]
    assert all(0 <= each["idle_ms"] <= (abs(seconds) + 60) * 1000 for each in flows), flows
    assert set(states(daemon).values()) == {"up"}
    with Process(
        ["ping", "-i", "0.05", "-c", "20", net.server()], log=net.scratch / "ping", namespace=net.host.name
    ) as p:
        assert " 0% packet loss" in p.wait().stdout


def test_a_removed_device_is_no_uplink_and_comes_back(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net, *ROUND_ROBIN)
    net.host.ip("link delete lte")
    wait_until(lambda: states(daemon).get("lte", "down") != "up", what="lte to be missed")
    assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 4, "lte": 0}
    recreate(net, "lte")
    # It is up with the first restored address, and carries flows of both IP versions a moment later.
    wait_until(
        lambda: by_uplink(net, ask_tcp(net.host, 4, net.server())) == SHARED, what="new flows to take both lines"
    )


@pytest.mark.parametrize("family", [4, 6])
def test_an_address_that_changes_in_the_middle_of_a_flow(net: Topology, start_braid: StartBraid, family: int) -> None:
    """A UDP flow goes on by itself; new flows and the other uplink are not affected."""
    start_braid(net, *ROUND_ROBIN)
    old = {each.name: each.address4 if family == 4 else each.address6 for each in net.uplinks.values()}
    askers = [
        Process(
            [sys.executable, "-m", "braid_lab.clients.udp_poller", "50", net.server(1, family)],
            log=net.scratch / f"asker-{number}",
            namespace=net.host.name,
        )
        for number in range(2)
    ]
    with askers[0] as one, askers[1] as other:
        for each in askers:
            each.wait_output(r"\S+")
        on_lte = next(each for each in askers if each.stdout().split()[0] == old["lte"])
        elsewhere = one if on_lte is other else other
        index, size = net.uplinks["lte"].index, 24 if family == 4 else 64
        new = f"100.64.{index}.77" if family == 4 else f"2001:db8:{index}::77"
        routes = [route.replace(old["lte"], new) for route in net.uplinks["lte"].defaults()]
        net.host.ip(
            f"address add {new}/{size} dev lte" + (" nodad" if family == 6 else ""),
            f"address delete {old['lte']}/{size} dev lte",
            f"address replace {new}/{size} dev lte" + (" nodad" if family == 6 else ""),
            *(f"route replace {route}" for route in routes),
        )
        # Over the new address or over the other uplink, as the policy decides.
        wait_until(lambda: on_lte.stdout().split()[-1] != old["lte"], what="the flow to go on", timeout=5)
        assert set(elsewhere.stdout().split()) == {old["dsl"]}
    # Its state alone may still be the one from before the change.
    wait_until(
        lambda: {address for address, _ in ask_tcp(net.host, 4, net.server(1, family))} == {old["dsl"], new},
        what="new flows to take both lines",
    )
