"""Observability from the command line: events, explanations, metrics, generated pages."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from braid_lab.net.topology import Topology
from braid_lab.observe import ask_tcp, by_uplink, states
from braid_lab.process import CommandError, Process, run, wait_until
from braid_lab.product import PASSED_ON, Braid, binary
from conftest import PLAIN, MakeNetwork, StartBraid

FAILED, UNREACHABLE = 1, 3


def kinds(daemon: Braid, *words: str) -> list[str]:
    return [each["kind"] for each in daemon.json("events", *words)["events"]]


def revive(net: Topology, name: str) -> None:
    """Bring a device back with its addresses and routes."""
    uplink = net.uplinks[name]
    net.host.ip(
        f"link set {name} up",
        f"address replace {uplink.address6}/64 dev {name} nodad",
        *(f"route replace {route}" for route in uplink.defaults()),
    )


def outline(answer: Any) -> Any:
    """Return an answer without its values, which change from moment to moment."""
    if isinstance(answer, dict):
        return {key: outline(value) for key, value in answer.items()}
    return [outline(each) for each in answer] if isinstance(answer, list) else type(answer)


def test_the_command_prints_what_the_api_says(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    ask_tcp(net.host, 4, *net.servers())
    assert daemon.json("flows")["flows"]
    for noun in PASSED_ON:
        wait_until(lambda: outline(daemon.json(noun)) == outline(daemon.command_json(noun)), what=f"braid {noun}")  # noqa: B023
    daemon.kill9()
    with pytest.raises(CommandError, match="no daemon is running, but its datapath is at work"):
        daemon.json("status")


def test_events_tell_what_happened_and_in_which_order(net: Topology, start_braid: StartBraid) -> None:
    file = net.scratch / "events.toml"
    file.write_text('policy = "rr"\n')
    daemon = start_braid(net, "--config", file)
    assert "started" in kinds(daemon)
    net.host.ip("link set lte down")
    wait_until(lambda: states(daemon).get("lte") != "up", what="lte to be seen down")
    revive(net, "lte")
    wait_until(lambda: states(daemon).get("lte") == "up", what="lte to be seen up")
    daemon.call("reload")
    file.write_text('policy = "best"\n')
    assert daemon.call("reload", check=False).status == FAILED
    file.write_text('policy = "wrr"\n')
    told = daemon.json("events")["events"]
    numbers = [each["number"] for each in told]
    assert numbers == list(range(numbers[0], numbers[0] + len(told)))
    order = [each["kind"] for each in told]
    assert order.index("uplink-gone") < order.index("uplink-back") < order.index("reloaded")
    assert order.index("reloaded") < order.index("reload-refused")
    refused = told[order.index("reload-refused")]
    assert "best" in refused["text"] + (refused.get("evidence") or ""), refused
    assert {each.get("uplink") for each in daemon.json("events", "--uplink", "lte")["events"]} == {"lte"}
    assert len(daemon.json("events", "--last", "2")["events"]) == 2
    # They survive a restart.
    daemon.kill9()
    daemon.up("--config", file)
    assert daemon.json("events")["events"][: len(told)] == told
    text = daemon.call("events").stdout
    assert "lte" in text
    assert "refused" in text


def test_only_what_is_for_nobody_here_counts_as_of_no_flow(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)

    def counted(reason: str) -> int:
        count: int = daemon.json("status")["reasons"].get(reason, 0)
        return count

    # An idle machine receives the replies to its own probes, and neighbour discovery.
    say = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', (sys.argv[1], int(sys.argv[2])))"
    talk = [sys.executable, "-c", say]
    group = ["224.0.0.251", "5353"]
    net.internet.ip(f"route replace 224.0.0.0/4 dev {net.uplinks['dsl'].far.device}")
    net.internet.run([*talk, *group])
    wait_until(lambda: counted("in_local") >= 5, what="probes to be answered", timeout=30)
    wait_until(lambda: counted("in_not_addressed") >= 1, what="the group to be heard")
    assert counted("in_no_flow") == 0
    net.internet.run([*talk, net.uplinks["dsl"].address4, "4"])
    wait_until(lambda: counted("in_no_flow") == 1, what="a stranger to be counted")


def test_round_trips_are_those_of_now(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    # Nothing changes for the second daemon: no device, no verdict.
    daemon.kill9()
    daemon.up()

    def measured() -> bool:
        uplinks = daemon.json("uplinks")["uplinks"]
        return all(each["rtt_ms"] is not None and each["loss"] == 0 for each in uplinks)

    wait_until(measured, what="round trips of both uplinks")


def test_events_can_be_followed(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    words = [str(binary()), "--run-dir", str(daemon.run_dir), "events", "--follow", "--json"]
    with Process(words, log=net.scratch / "follow", namespace=net.host.name) as follow:
        follow.wait_output('"started"')
        net.host.ip("link set dsl down")
        follow.wait_output('"uplink-gone"')
        # Also across a restart of the daemon.
        daemon.kill9()
        daemon.up()
        wait_until(lambda: follow.stdout().count('"started"') >= 2, what="the new daemon's first event")
        follow.signal(signal.SIGINT)
        follow.wait()
        assert all(json.loads(line) for line in follow.stdout().splitlines())


def test_explain_says_what_then_happens(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net, "--policy", "hash-pair")
    for server in net.servers()[:4]:
        answer = daemon.json("explain", f"{server}:80")["answers"][0]
        assert answer["outcome"] == "uplink", answer
        counts = by_uplink(net, ask_tcp(net.host, 2, server))
        assert counts[answer["uplink"]] == 2, (server, answer["uplink"], counts)
    net.host.ip("link set lte down")
    wait_until(lambda: states(daemon).get("lte") != "up", what="lte to be seen down")
    for server in net.servers()[:4]:
        answer = daemon.json("explain", f"{server}:80")["answers"][0]
        assert answer["uplink"] == "dsl", answer
    said = daemon.call("explain", f"{net.server()}:80").stdout
    assert "dsl" in said


def test_explain_of_a_local_route_says_that_it_is_not_ours(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    answer = daemon.json("explain", net.uplinks["lte"].gateway4)["answers"][0]
    assert answer["outcome"] == "untouched", answer


def test_explain_lists_the_flow_that_it_describes(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    words = ["curl", "-sSf", "--limit-rate", "50K", "-o", "/dev/null", f"http://{net.server(3)}/bytes/500000"]
    with Process(words, log=net.scratch / "slow", namespace=net.host.name):
        wait_until(lambda: daemon.json("flows")["flows"], what="the flow")
        (flow,) = daemon.json("explain", f"{net.server(3)}:80")["answers"][0]["flows"]
        assert flow["remote"] == f"{net.server(3)}:80"
        assert flow["uplink"] in net.uplinks


@pytest.fixture
def metered(net: Topology, start_braid: StartBraid) -> Braid:
    file = net.scratch / "metrics.toml"
    file.write_text('policy = "rr"\n[metrics]\nlisten = "127.0.0.1:9494"\n')
    return start_braid(net, "--config", file)


def test_metrics_are_what_status_says(net: Topology, metered: Braid) -> None:
    ask_tcp(net.host, 6, net.server())
    text = net.host.run(["curl", "-sSf", "http://127.0.0.1:9494/metrics"]).stdout
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"braid_[a-z0-9_]+(\{[^}]*\})? [0-9.e+-]+", line) for line in lines), text
    assert text.endswith("# EOF\n")
    labels = set(re.findall(r'(\w+)="', text))
    assert labels <= {"uplink", "direction", "reason", "version", "family", "state"}, labels
    sent = re.search(r'braid_datapath_packets_total\{reason="out_new"\} (\d+)', text)
    assert sent
    assert 6 <= int(sent.group(1)) <= metered.json("status")["reasons"]["out_new"]
    assert re.search(r'uplink="dsl"', text)
    assert (
        net.host.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:9494/x"]).stdout
        == "404"
    )


def test_top_needs_a_terminal_and_says_so(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    said = daemon.call("top", check=False)
    assert said.status != 0
    assert "terminal" in said.stderr, said.text


def test_top_shows_uplinks_and_ends_with_q(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(*PLAIN)
    daemon = start_braid(net)
    command = f"stty rows 40 cols 120; exec {binary()} --run-dir {daemon.run_dir} top --every 0.2"
    # `script` gives it a terminal, which has no size by itself; its input is what we write.
    keys = net.scratch / "keys"
    run(["mkfifo", keys])
    argv = ["sh", "-c", f"script -qec '{command}' /dev/null < {keys}"]
    with Process(argv, log=net.scratch / "top", namespace=net.host.name) as top, keys.open("w") as typed:
        top.wait_output("dsl")
        top.wait_output("lte")
        typed.write("q")
        typed.flush()
        assert top.wait(timeout=5).status == 0


def test_commands_without_a_daemon_say_so(net: Topology) -> None:
    daemon = Braid(net.host, net.scratch / "nobody")
    for words in (["events"], ["explain", "198.51.100.1"], ["run", "--uplink", "dsl", "--", "true"]):
        said = daemon.call(*words, check=False)
        assert said.status == UNREACHABLE, said.text
        assert "braid up" in said.stderr, said.text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_are_made(shell: str) -> None:
    text = run([binary(), "completions", shell]).stdout
    assert "explain" in text
    if shell == "bash":
        run(["bash", "-n"], text=text)


#: Completes a line as bash does when Tab is pressed at its end; prints the candidates, and whether bash would fall
#: back to file names.
COMPLETE = """
    shopt -s extglob
    source "$1"
    compopt() { printf '%s\\n' "compopt $*" >&2; }
    COMP_WORDS=("${@:2}")
    COMP_CWORD=$(($# - 2))
    COMPREPLY=()
    _braid braid "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_bash_completes_names_of_uplinks(net: Topology, start_braid: StartBraid, tmp_path: Path) -> None:
    daemon = start_braid(net)
    script = tmp_path / "braid.bash"
    script.write_text(run([binary(), "completions", "bash"]).stdout)

    def offered(*words: str) -> list[str]:
        env = {"PATH": f"{binary().parent}:{os.environ['PATH']}", "BRAID_RUN_DIR": str(daemon.run_dir)}
        said = run(["bash", "-c", COMPLETE, "bash", script, "braid", *words], env=env)
        if words[-2] in ("--uplink", "--source", "--last"):
            assert "compopt" in said.stderr, "names of files are offered if there is nothing else"
        return said.stdout.split()

    assert daemon.call("uplinks", "--names").stdout.split() == ["dsl", "lte"]
    for command in ("run", "flows", "events"):
        assert offered(command, "--uplink", "") == ["dsl", "lte"]
        assert offered(command, "--uplink", "l") == ["lte"]
        assert offered(command, "--uplink", "/et") == []
    assert offered("explain", "--source", "/et") == ["/et"], "no file"
    assert offered("up", "--config", "/etc/host") != []
    assert "rr" in offered("up", "--policy", "")
    daemon.down()
    assert offered("run", "--uplink", "") == []


def test_manual_pages_are_made(tmp_path: Path) -> None:
    run([binary(), "man", tmp_path / "man"])
    names = {page.name for page in (tmp_path / "man").iterdir()}
    assert {"braid.1", "braid-explain.1", "braid-run.1"} <= names, names


def test_manual_pages_go_to_a_directory_whose_parent_exists(tmp_path: Path) -> None:
    said = run([binary(), "man", tmp_path / "no" / "man"], check=False)
    assert (said.status, "fix: make the directory above it first" in said.stderr) == (FAILED, True), said.text
    assert not (tmp_path / "no").exists()
    said = run([binary(), "man", tmp_path / "man"])
    assert "(new directory)" in said.stdout, said.text
    assert "new" not in run([binary(), "man", tmp_path / "man"]).stdout
