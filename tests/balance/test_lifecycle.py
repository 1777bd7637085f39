"""Starting and stopping, and their errors."""

from __future__ import annotations

import grp
import os
import re
import subprocess
from pathlib import Path

import pytest

from braid_lab.net.namespace import namespace
from braid_lab.net.topology import Topology
from braid_lab.observe import ask_tcp, by_uplink, differences, kernel_state, states
from braid_lab.process import CommandError, Output, run, wait_until
from braid_lab.product import Braid, binary, repository, unconfigured
from conftest import PLAIN, MakeNetwork, StartBraid

FAILED, USAGE, UNREACHABLE = 1, 2, 3


def refused(net: Topology, start_braid: StartBraid, *options: str | Path) -> CommandError:
    with pytest.raises(CommandError) as error:
        start_braid(net, *options)
    return error.value


@pytest.mark.parametrize("lan_clients", [0, 1])
@pytest.mark.parametrize("crashed", [False, True])
def test_down_leaves_the_machine_as_found(
    make_network: MakeNetwork, start_braid: StartBraid, lan_clients: int, crashed: bool
) -> None:
    net = make_network(*PLAIN, lan_clients=lan_clients)
    before = kernel_state(net.host)
    daemon = start_braid(net)
    location = net.clients[0] if lan_clients else net.host
    assert by_uplink(net, ask_tcp(location, 4, net.server())) == {"dsl": 2, "lte": 2}
    assert differences(before, kernel_state(net.host)), "the daemon did nothing that we can see"
    if crashed:
        daemon.kill9()
    daemon.down()
    assert differences(before, kernel_state(net.host)) == []
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(daemon.run_dir) not in mounts


def test_down_twice_is_fine(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    daemon.down()
    second = daemon.call("down", check=False)
    assert second.status == 0, second.text


def test_up_again_after_down(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    daemon.down()
    daemon.up()
    assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 2, "lte": 2}


def test_a_second_daemon_is_refused_and_the_first_goes_on(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    pid = daemon.pid
    second = daemon.call("up", check=False)
    assert second.status == FAILED
    assert "already" in second.stderr, second.text
    assert str(pid) in second.stderr, second.text
    assert daemon.pid == pid
    assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 2, "lte": 2}


def test_no_uplink_is_said() -> None:
    with namespace("lonely") as location:
        before = kernel_state(location)
        daemon = Braid(location, Path(f"/run/braid-lab/{location.name}"))
        answer = daemon.call("up", check=False)
        assert answer.status == FAILED
        assert "uplink" in answer.stderr, answer.text
        assert "default route" in answer.stderr, answer.text
        daemon.call("down", check=False)
        assert differences(before, kernel_state(location)) == []


def test_commands_without_a_daemon_say_so(net: Topology) -> None:
    daemon = Braid(net.host, net.scratch / "nobody")
    for noun in ("status", "uplinks", "flows"):
        answer = daemon.call(noun, check=False)
        assert answer.status == UNREACHABLE, answer.text
        assert "braid up" in answer.stderr, answer.text


def test_usage_errors_have_their_own_status(net: Topology) -> None:
    daemon = Braid(net.host, net.scratch / "nobody")
    assert daemon.call("frobnicate", check=False).status == USAGE
    assert daemon.call("up", "--policy", "best", check=False).status == USAGE


def test_the_name_of_no_uplink_is_a_usage_error_whatever_command_it_is_given_to(
    net: Topology, start_braid: StartBraid
) -> None:
    daemon = start_braid(net)
    for words in (
        ["flows", "--uplink", "dls"],
        ["events", "--uplink", "dls"],
        ["events", "--follow", "--uplink", "dls"],
        ["run", "--uplink", "dls", "--", "true"],
    ):
        said = daemon.call(*words, check=False)
        assert (said.status, said.stdout) == (USAGE, ""), said.text
        assert 'there is no uplink "dls"' in said.stderr, said.text
        assert "there are dsl, lte" in said.stderr, said.text
    for words in (["flows", "--uplink", "lte"], ["events", "--uplink", "lte"]):
        assert daemon.call(*words, check=False).status == 0
    daemon.down()
    said = daemon.call("up", "--weight", "dls=2", check=False)
    assert said.status == USAGE, said.text
    assert "there are dsl, lte" in said.stderr, said.text


def test_nothing_to_do_is_no_failure_and_said(net: Topology, start_braid: StartBraid) -> None:
    nobody = Braid(net.host, net.scratch / "nobody")
    for daemon in (start_braid(net), nobody):
        said = daemon.call("leave", check=False)
        assert (said.status, said.stderr) == (0, ""), said.text
        assert "nothing to leave" in said.stdout, said.text
    said = nobody.call("down", check=False)
    assert (said.status, "nothing to undo" in said.stdout) == (0, True), said.text


def test_a_directory_that_cannot_be_is_refused_with_what_to_do(net: Topology) -> None:
    file = net.scratch / "a-file"
    file.write_text("")
    for location in (file, file / "below"):
        daemon = Braid(net.host, location)
        for words, status in ((["up"], FAILED), (["status"], UNREACHABLE)):
            said = daemon.call(*words, check=False)
            assert said.status == status, said.text
            assert str(file) in said.stderr, said.text
            assert "fix: --run-dir" in said.stderr, said.text
    long = Braid(net.host, net.scratch / ("x" * 120))
    said = long.call("up", check=False)
    assert (said.status, "fix: --run-dir" in said.stderr) == (USAGE, True), said.text
    assert not long.run_dir.exists()


def test_a_configuration_that_cannot_be_read_is_refused_with_what_to_do(net: Topology) -> None:
    binary_file = net.scratch / "latin1.toml"
    binary_file.write_bytes(b'policy = "\xff"\n')
    daemon = Braid(net.host, net.scratch / "nobody")
    for file in (net.scratch / "no-such-file", net.scratch, binary_file):
        for words in (["up"], ["config", "check"], ["config", "show"], ["doctor"]):
            said = daemon.call(*words, "--config", file, check=False)
            assert said.status == FAILED, said.text
            assert str(file) in said.stderr, said.text
            assert "fix:" in said.stderr, said.text


BAD = {
    "unknown key": ("polcy = 'rr'\n", ["polcy", "1"]),
    "weight zero": ('[[uplink]]\nname = "dsl"\ndevice = "dsl"\nweight = 0\n', ["weight", "4"]),
    "negative weight": ('[[uplink]]\nname = "dsl"\ndevice = "dsl"\nweight = -2\n', ["weight", "4"]),
    "two uplinks on one device": (
        '[[uplink]]\nname = "one"\ndevice = "dsl"\n[[uplink]]\nname = "two"\ndevice = "dsl"\n',
        ["dsl", "two"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_configuration_is_refused_with_its_place(net: Topology, start_braid: StartBraid, case: str) -> None:
    text, expected = BAD[case]
    file = net.scratch / "bad.toml"
    file.write_text(text)
    before = kernel_state(net.host)
    error = refused(net, start_braid, "--config", file)
    assert error.status == FAILED
    assert all(word in error.output for word in [*expected, "bad.toml"]), error.output
    assert differences(before, kernel_state(net.host)) == []
    assert Braid(net.host, net.scratch / "nobody").call("config", "check", "--config", file, check=False).status != 0


def test_named_uplinks_are_taken_exactly(net: Topology, start_braid: StartBraid) -> None:
    file = net.scratch / "one.toml"
    file.write_text('[[uplink]]\nname = "mobile"\ndevice = "lte"\n')
    daemon = start_braid(net, "--config", str(file))
    assert [each["name"] for each in daemon.json("uplinks")["uplinks"]] == ["mobile"]
    assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 0, "lte": 4}


def test_weight_for_an_unknown_uplink_is_refused(net: Topology, start_braid: StartBraid) -> None:
    error = refused(net, start_braid, "--policy", "wrr", "--weight", "dsl=5", "--weight", "fibre=3")
    assert "fibre" in error.output, error.output


def foreign_program(net: Topology) -> Path:
    """Compile a program that does nothing."""
    source = net.scratch / "foreign.c"
    source.write_text('__attribute__((section("classifier"), used)) int foreign(void *skb) { return -1; }\n')
    target = source.with_suffix(".o")
    run(["clang", "-O2", "-target", "bpf", "-c", source, "-o", target])
    return target


def test_a_foreign_program_on_the_hook_is_named_and_left(net: Topology, start_braid: StartBraid) -> None:
    program = foreign_program(net)
    net.host.run(["tc", "qdisc", "add", "dev", "lte", "clsact"])
    words = ["tc", "filter", "add", "dev", "lte", "ingress", "bpf", "direct-action", "obj", str(program)]
    net.host.run([*words, "sec", "classifier"])
    before = kernel_state(net.host)
    error = refused(net, start_braid)
    assert "lte" in error.output, error.output
    assert "foreign" in error.output, error.output
    assert differences(before, kernel_state(net.host)) == []


def test_a_reload_that_the_kernel_refuses_lets_no_uplink_back(net: Topology, start_braid: StartBraid) -> None:
    """All or nothing: a waiting uplink goes on waiting until a reload succeeds."""
    file = net.scratch / "never.toml"
    one = '[[uplink]]\ndevice = "{}"\n'
    file.write_text('failback = "never"\n' + one.format("dsl") + one.format("lte"))
    daemon = start_braid(net, "--config", file)
    lte = net.uplinks["lte"]
    net.host.ip("link set lte down")
    wait_until(lambda: states(daemon)["lte"] == "down", what="lte to be seen down")
    net.host.ip(
        "link set lte up",
        f"address replace {lte.address6}/64 dev lte nodad",
        *(f"route replace {route}" for route in lte.defaults()),
    )
    wait_until(lambda: states(daemon)["lte"] == "standby", what="lte to wait")
    # A third uplink, whose hook is taken.
    program = foreign_program(net)
    net.host.ip(
        "link add third type veth peer name far",
        "link set far up",
        "link set third up",
        "address add 192.0.2.9/24 dev third",
    )
    net.host.run(["tc", "qdisc", "add", "dev", "third", "clsact"])
    words = ["tc", "filter", "add", "dev", "third", "ingress", "bpf", "direct-action", "obj", str(program)]
    net.host.run([*words, "sec", "classifier"])
    before = file.read_text()
    file.write_text(before + one.format("third") + 'gateway4 = "192.0.2.1"\n')
    refused = daemon.call("reload", check=False)
    assert refused.status == FAILED, refused.text
    assert "third" in refused.stderr, refused.text
    assert states(daemon)["lte"] == "standby"
    assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 4, "lte": 0}
    file.write_text(before)
    daemon.call("reload")
    assert states(daemon)["lte"] == "up"


def test_a_reload_says_who_may_ask(net: Topology, start_braid: StartBraid) -> None:
    file = net.scratch / "api.toml"
    file.write_text("")
    daemon = start_braid(net, "--config", file)
    socket = daemon.run_dir / "braid.sock"
    ours = grp.getgrgid(os.getegid()).gr_name
    others = [each.gr_name for each in grp.getgrall() if each.gr_gid != os.getegid()]
    for group in (*others[:2], None):
        file.write_text("" if group is None else f'[api]\ngroup = "{group}"\n')
        daemon.call("reload")
        assert socket.group() == (group or ours)
    file.write_text('[api]\ngroup = "no-such-group"\n')
    refused = daemon.call("reload", check=False)
    assert refused.status == FAILED
    assert "no-such-group" in refused.stderr, refused.text
    assert socket.group() == ours


def test_without_root_the_reason_is_said(net: Topology) -> None:
    unprivileged = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]
    location = net.scratch / "unprivileged"
    location.mkdir(mode=0o777)
    location.chmod(0o777)
    # The binary may be in a folder that only root can read.
    copy = location / "braid"
    copy.write_bytes(binary().read_bytes())
    copy.chmod(0o755)
    for directory in (net.scratch, net.scratch.parent):
        directory.chmod(0o755)
    argv = [
        "nsenter",
        f"--net={net.host.path}",
        "--",
        *unprivileged,
        str(copy),
        "--run-dir",
        str(location),
        "up",
        *unconfigured(),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    answer = Output(done.returncode, done.stdout, done.stderr)
    assert answer.status == FAILED, answer.text
    assert "root" in answer.stderr or "CAP_" in answer.stderr, answer.text
    assert "panicked" not in answer.stderr


def test_version_and_doctor_work_without_a_daemon(net: Topology) -> None:
    daemon = Braid(net.host, net.scratch / "nobody")
    assert daemon.json("version")["version"]
    daemon.json("doctor")


def test_the_units_capabilities_are_enough(net: Topology) -> None:
    """The service does not need more privileges than its unit grants: up, reload, takeover and down all work."""
    unit = (repository() / "packaging/systemd/braid.service").read_text()
    [left] = [
        line.partition("=")[2].split() for line in unit.splitlines() if line.startswith("CapabilityBoundingSet=")
    ]
    assert "NoNewPrivileges=yes" in unit
    bounds = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in left)])
    before = kernel_state(net.host)
    daemon = Braid(net.host, net.scratch / "confined")

    def confined(*words: str) -> Output:
        argv: list[str | Path] = ["setpriv", "--no-new-privs", f"--bounding-set={bounds}", "--", binary()]
        return run([*argv, "--run-dir", daemon.run_dir, *words], namespace=net.host.name)

    try:
        confined("up", *unconfigured())
        allowed = re.search(r"CapEff:\s*(\w+)", Path(f"/proc/{daemon.pid}/status").read_text())
        assert allowed is not None
        assert int(allowed[1], 16).bit_count() <= len(left)
        assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 2, "lte": 2}
        confined("reload")
        daemon.kill9()
        confined("up", *unconfigured())
        assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 2, "lte": 2}
        confined("down")
    finally:
        daemon.call("down", check=False)
    assert differences(before, kernel_state(net.host)) == []
