"""The configuration file: a good one, and bad ones with everything that is wrong named at once."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from braid_lab.fabric.controller import configuration
from braid_lab.fabric.shapes import east_asia
from braid_sdn.fabric.acl import Acl
from braid_sdn.fabric.config import ConfigError, read
from braid_sdn.fabric.plan.forecast import Scheduler
from braid_sdn.fabric.settings import FloodSettings


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fabric.toml"
    path.write_text(text)
    return path


def test_no_file_is_a_configuration() -> None:
    config = read(None)
    assert (config.host, config.port, config.tls) == ("127.0.0.1", 6653, None)
    assert len(config.settings.key) >= 16
    assert read(None).settings.key != config.settings.key


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"0123456789abcdef\n")
    text = 'listen = "[::1]:7000"\nkey_file = "key"\n' + configuration(east_asia())
    text += '[paths]\nleave_out_skew = "100 ms"\nresequence_mdi = 0.1\nscheduler = "wrr"\nframe_bytes = 9000\n'
    (tmp_path / "edge.key").write_bytes(b"fedcba9876543210\n")
    text += '[[edge]]\nname = "far away"\nswitch = "BEJ"\nport = "x"\nkey_file = "edge.key"\n'
    text += '[tls]\ncertificate = "c.pem"\nkey = "c.key"\nauthority = "/ca.pem"\n'
    config = read(written(tmp_path, text))
    assert (config.host, config.port) == ("::1", 7000)
    assert config.settings.key == b"0123456789abcdef"
    assert config.settings.names[1] == "BEJ"
    assert [edge.key for edge in config.settings.edges] == [None] * 4 + [b"fedcba9876543210"]
    assert config.settings.links[0].capacity == 10e6
    assert config.settings.limits.leave_out_skew == pytest.approx(0.1)
    assert config.settings.limits.resequence_mdi == pytest.approx(0.1)
    assert (config.settings.scheduler, read(None).settings.scheduler) == (Scheduler.WRR, Scheduler.EARLIEST_ARRIVAL)
    assert (config.settings.frame_bytes, read(None).settings.frame_bytes) == (9000, None)
    assert config.tls is not None
    assert (config.tls.certificate, config.tls.authority) == (tmp_path / "c.pem", Path("/ca.pem"))


def test_a_misspelt_scheduler_is_named_with_the_one_that_is_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(written(tmp_path, '[paths]\nscheduler = "earliest_arival"\n'))
    said = "'earliest_arival' is not known; there are earliest-arrival, wrr; 'earliest-arrival' is meant?"
    assert str(refused.value).endswith(f"fabric.toml: paths.scheduler: {said}")


@pytest.mark.parametrize(("text", "said"), [("1279", "not 1279"), ("9001", "not 9001"), ('"9 kB"', "a whole number")])
def test_packets_are_of_a_size_that_can_be_measured(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"paths.frame_bytes: must be .*{said}$"):
        read(written(tmp_path, f"[paths]\nframe_bytes = {text}\n"))


def test_what_ports_may_have_flooded(tmp_path: Path) -> None:
    assert read(None).settings.flood == FloodSettings()
    text = '[[switch]]\nid = "1"\nname = "A"\n[flood]\nlimit = "20 Mbit/s"\n'
    text += '[flood.ports]\n"A:eth1" = "off"\n"0000000000000002:7" = "1 Gbit/s"\n'
    ports = {("A", "eth1"): math.inf, ("0000000000000002", "7"): 1e9}
    assert read(written(tmp_path, text)).settings.flood == FloodSettings(2e7, ports)
    for off in ('"off"', "0"):
        assert read(written(tmp_path, f"[flood]\nlimit = {off}\n")).settings.flood.is_off
    assert read(None).settings.flood.is_off
    assert read(written(tmp_path, '[flood]\nlimit = "auto"\n')).settings.flood.limit is None
    for wrong, said in (
        ('limit = "fast"', 'flood.limit: must be a text such as "10 Mbit/s" above 0'),
        ("limit = false", "flood.limit: must be a text"),
        ('limit = "0 Mbit/s"', 'flood.limit: must be a text such as "10 Mbit/s" above 0'),
        ('limit = "7 kbit/s"', 'flood.limit: must be at least 8 kbit/s, or "off"'),
        ('ports = {"B:1" = "off"}', 'flood.ports."B:1": '),
        ('ports = {"1" = "off"}', 'flood.ports."1": '),
        ('ports = {"0000000000000001:1" = 5}', '"0000000000000001:1": must be a text'),
        ("port = {}", "flood.port: is not known here; there are limit, ports"),
    ):
        with pytest.raises(ConfigError) as refused:
            read(written(tmp_path, f"[flood]\n{wrong}\n"))
        (line,) = str(refused.value).splitlines()
        assert said in line


BAD = """
listen = "here"
colour = "blue"
[[switch]]
id = "xyz"
name = "A"
[[link]]
between = ["A"]
capacity = "fast"
[[edge]]
name = "e"
[paths]
leave_out_mdi = 0.7
resequence_skew = 5
"""


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(written(tmp_path, BAD))
    lines = [line.partition(": ")[2] for line in str(refused.value).splitlines()]
    assert {line.partition(":")[0] for line in lines} == {
        "listen",
        "colour",
        "switch 1.id",
        "link 1.between",
        "link 1.capacity",
        "edge 1.switch",
        "edge 1.port",
        "paths.leave_out_mdi",
        "paths.resequence_skew",
    }


def wrong_lines(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        read(written(tmp_path, text))
    return [line.partition("fabric.toml: ")[2] for line in str(refused.value).splitlines()]


def test_each_error_is_named_once(tmp_path: Path) -> None:
    assert wrong_lines(tmp_path, 'host_lifetime = "300"') == [
        """host_lifetime: must be a text such as "10 s" above 0, not '300'; units are us, ms, s, min, h"""
    ]
    assert wrong_lines(tmp_path, '[[edge]]\nname = 5\nswitch = "A1"\nport = "x"') == ["edge 1.name: must be a text"]
    (nearest,) = wrong_lines(tmp_path, 'host_lifetme = "5 min"')
    assert nearest.endswith("; 'host_lifetime' is meant?")


def test_times_have_the_units_that_all_configurations_have(tmp_path: Path) -> None:
    assert read(written(tmp_path, 'host_lifetime = "5 min"')).settings.host_lifetime == 300


def test_a_whole_number_is_a_number(tmp_path: Path) -> None:
    assert read(written(tmp_path, "[paths]\nresequence_mdi = 0")).settings.limits.resequence_mdi == 0
    assert wrong_lines(tmp_path, "[paths]\nresequence_mdi = true") == ["paths.resequence_mdi: must be a number"]


def test_files_that_cannot_be_read_are_named_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path / "none.toml")
    said = f"{tmp_path / 'none.toml'}: No such file or directory; name a file that can be read by --config FILE"
    assert str(refused.value) == said
    assert wrong_lines(tmp_path, 'key_file = "none.key"') == [
        f"key_file: {tmp_path / 'none.key'}: No such file or directory"
    ]


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fabric\.toml"):
        read(tmp_path / "fabric.toml")
    with pytest.raises(ConfigError, match="line 1"):
        read(written(tmp_path, "= what"))
    with pytest.raises(ConfigError, match="at least 16"):
        (tmp_path / "key").write_bytes(b"short")
        read(written(tmp_path, 'key_file = "key"'))
    with pytest.raises(ConfigError, match=r"edge 1\.key_file: .*at least 16"):
        read(written(tmp_path, '[[edge]]\nname = "e"\nswitch = "A"\nport = "1"\nkey_file = "key"'))


def test_two_edges_with_one_key_are_refused_by_their_names(tmp_path: Path) -> None:
    edge = '[[edge]]\nname = "{0}"\nswitch = "A"\nport = "{0}"\nkey_file = "{0}.key"\n'
    text = "".join(edge.format(name) for name in ("oslo", "bergen", "hamar"))
    for name, key in (
        ("oslo", b"the key of oslo !"),
        ("bergen", b"the key of bergen"),
        ("hamar", b"the key of oslo !\n"),
    ):
        (tmp_path / f"{name}.key").write_bytes(key)
    with pytest.raises(ConfigError) as refused:
        read(written(tmp_path, text))
    (line,) = str(refused.value).splitlines()
    assert "edge 3.key_file" in line
    assert "'hamar'" in line
    assert "'oslo'" in line
    assert "bergen" not in line
    # Keys that cannot be read are no key that two have.
    for name in ("oslo", "hamar"):
        (tmp_path / f"{name}.key").unlink()
    with pytest.raises(ConfigError) as refused:
        read(written(tmp_path, text))
    assert len(str(refused.value).splitlines()) == 2


def test_an_edge_and_a_host_are_configured_once(tmp_path: Path) -> None:
    text = '[[edge]]\nname = "oslo"\nswitch = "1"\nport = "x"\n[[host]]\nmac = "02:00:00:00:00:07"\n'
    text += 'switch = "1"\nport = "y"\n'
    with pytest.raises(ConfigError) as refused:
        read(written(tmp_path, 2 * text))
    said = [line.partition(": ")[2] for line in str(refused.value).splitlines()]
    assert said == ["edge 2.name: 'oslo' is given twice", "host 2.mac: 02:00:00:00:00:07 is given twice"]


def test_names_of_switches_that_nobody_has_are_refused(tmp_path: Path) -> None:
    text = """
[[switch]]
id = "1"
name = "HAW"
[[switch]]
id = "2"
name = "TOK"
[[link]]
between = ["HAV", "0000000000000002"]
capacity = "10 Mbit/s"
[[edge]]
name = "e"
switch = "Tokyo"
port = "x"
[[host]]
mac = "01:00:00:00:00:01"
switch = "nowhere"
port = "y"
addresses = ["10.0.0.256"]
"""
    with pytest.raises(ConfigError) as caught:
        read(written(tmp_path, text))
    said = str(caught.value)
    assert "link 1.between: no [[switch]] is called 'HAV'" in said
    assert "'HAW' is meant?" in said
    for part in ("edge 1.switch", "host 1.mac", "host 1.switch", "host 1.addresses: '10.0.0.256'"):
        assert part in said
    assert said.count("\n") == 4


def test_a_switch_may_be_named_by_its_id_and_hosts_by_their_place(tmp_path: Path) -> None:
    text = """
host_lifetime = "60 s"
failover = false
[[switch]]
id = "2"
name = "TOK"
[[link]]
between = ["1", "0000000000000002"]
capacity = "10 Mbit/s"
[[host]]
mac = "02:00:00:00:00:0A"
switch = "TOK"
port = "y"
addresses = ["fd77:0::1"]
"""
    settings = read(written(tmp_path, text)).settings
    assert settings.links[0].between == ("0000000000000001", "TOK")
    (host,) = settings.hosts
    assert (host.mac, host.switch, host.addresses) == ("02:00:00:00:00:0a", "TOK", frozenset({"fd77::1"}))
    assert settings.host_lifetime == pytest.approx(60)
    assert not settings.failover
    assert read(None).settings.failover


def test_hosts_live_long_enough_to_be_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 10 s"):
        read(written(tmp_path, 'host_lifetime = "3 s"'))


def test_a_page_is_off_until_it_is_configured_and_its_mistakes_are_named(tmp_path: Path) -> None:
    assert read(None).web is None
    good = '[web]\nlisten = "[fd00::1]:8444"\nnames = ["fabric.home.arpa"]\ncertificate = "c.pem"\nkey = "/k.pem"\n'
    web = read(written(tmp_path, good)).web
    assert web is not None
    assert (str(web.listen[0]), web.listen[1], web.names) == ("fd00::1", 8444, ("fabric.home.arpa",))
    assert (web.certificate, web.key) == (tmp_path / "c.pem", Path("/k.pem"))
    for line, why in (
        ('listen = "here"', "web.listen: must be an address and a port"),
        ('listen = "1.2.3:80"', "web.listen: '1.2.3' is no IP address"),
        ('listen = "127.0.0.1:0"', "web.listen: cannot have port 0"),
        ('names = ["a:80"]', "web.names: must be names such as"),
        ("names = [5]", "web.names: must be names such as"),
        ('names = ["a", "A"]', "web.names: a name is given twice"),
        ('key = "k.pem"', "web: a certificate and its key come together"),
        ('listne = "127.0.0.1:80"', "web.listne: is not known here"),
    ):
        with pytest.raises(ConfigError) as refused:
            read(written(tmp_path, f"[web]\n{line}\n"))
        assert why in str(refused.value), line


CLUSTER = """
key_file = "key"
[cluster]
name = "alpha"
address = "https://192.0.2.1:8444"
etcd = ["https://etcd-1.example:2379", "https://[2001:db8::2]:2379"]
lease = "5 s"
certificate = "c.pem"
key = "c.key"
authority = "ca.pem"
"""


def test_a_cluster_is_read(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"0123456789abcdef")
    cluster = read(written(tmp_path, CLUSTER)).cluster
    assert cluster is not None
    assert [str(each) for each in cluster.endpoints] == ["https://etcd-1.example:2379", "https://[2001:db8::2]:2379"]
    assert (str(cluster.me), cluster.lease) == ("alpha (at https://192.0.2.1:8444)", 5.0)
    assert cluster.tls is not None
    assert cluster.tls.authority == tmp_path / "ca.pem"
    other = read(written(tmp_path, CLUSTER.replace("alpha", "beta"))).cluster
    assert other is not None
    assert other.digest == cluster.digest
    other = read(written(tmp_path, CLUSTER + '[[switch]]\nid = "1"\nname = "A"\n')).cluster
    assert other is not None
    assert other.digest != cluster.digest


def test_equal_configurations_are_equal_in_every_process(tmp_path: Path) -> None:
    """The order of a set differs from process to process."""
    (tmp_path / "key").write_bytes(b"0123456789abcdef")
    addresses = ", ".join(f'"192.0.2.{number}"' for number in range(8))
    host = f'[[host]]\nmac = "02:00:00:00:00:01"\nswitch = "A"\nport = "1"\naddresses = [{addresses}]\n'
    file = written(tmp_path, CLUSTER + '[[switch]]\nid = "1"\nname = "A"\n' + host)
    words = "import sys, pathlib; from braid_sdn.fabric.config import read; "
    words += "print(read(pathlib.Path(sys.argv[1])).cluster.digest)"
    told = {
        subprocess.run(
            [sys.executable, "-c", words, str(file)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
        ).stdout
        for seed in range(4)
    }
    assert len(told) == 1


def test_a_cluster_that_cannot_be_is_refused(tmp_path: Path) -> None:
    text = '[cluster]\netcd = ["etcd:2379", 5]\nprefix = "x"\nlease = "1500 ms"\ncertificate = "c.pem"\n'
    with pytest.raises(ConfigError) as refused:
        read(written(tmp_path, text))
    assert [line.partition("fabric.toml: ")[2] for line in str(refused.value).splitlines()] == [
        "cluster: needs key_file, the same for all controllers: they share their probes",
        "cluster.name: is missing",
    ]
    with pytest.raises(ConfigError) as refused:
        read(written(tmp_path, text.replace("[cluster]", '[cluster]\nname = "alpha"')))
    assert [line.partition("fabric.toml: ")[2] for line in str(refused.value).splitlines()] == [
        "cluster: needs key_file, the same for all controllers: they share their probes",
        "cluster.etcd: must be addresses such as \"http://192.168.1.11:2379\", not 'etcd:2379'",
        'cluster.etcd: must be addresses such as "http://192.168.1.11:2379", not 5',
        "cluster.key: is missing",
        "cluster.authority: is missing",
        "cluster.prefix: must be keys such as \"/braid/fabric\", not 'x'",
        "cluster.lease: must be whole seconds from 2 to 60",
    ]


def list_of(tmp_path: Path, text: str) -> Acl:
    named = '[[switch]]\nid = "1"\nname = "A"\n[[switch]]\nid = "2"\nname = "both"\n'
    named += '[[edge]]\nname = "ha"\nswitch = "A"\nport = "x"\n[[edge]]\nname = "both"\nswitch = "A"\nport = "y"\n'
    return read(written(tmp_path, text + named)).settings.acl


def test_lists_within_lists_without_end_are_a_bad_configuration(tmp_path: Path) -> None:
    """A reload is refused, and the list before stays, for a ConfigError alone."""
    depth = 100_000
    with pytest.raises(ConfigError, match="has lists or tables within one another, too many to be read"):
        list_of(tmp_path, f"acl = {'[' * depth}{']' * depth}\n")


def test_an_access_control_list_with_all_that_an_entry_may_say(tmp_path: Path) -> None:
    acl = list_of(
        tmp_path,
        """
acl_default = "deny"
[[acl]]
name = "web"
action = "permit"
from = "10.0.0.0/24"
at = "A:eth1"
to = "2.2.2.2"
protocol = "tcp"
port = "8000-8080"
from_port = 53
[[acl]]
action = "deny"
from = "ha"
to = "edge both"
[[acl]]
action = "deny"
from = "02:00:00:00:00:0A"
to = "A"
[[acl]]
action = "deny"
to = "2001:db8::/32"
""",
    )
    assert acl.default == "deny"
    assert [str(each) for each in acl.entries] == [
        "permit tcp from port 53 to port 8000-8080 from 10.0.0.0/24 at A:eth1 to 2.2.2.2",
        "deny from ha to both",
        "deny from 02:00:00:00:00:0a to A",
        "deny from any to 2001:db8::/32",
    ]
    assert acl.called(1) == "entry 1 (web)"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('action = "denny"', "action: 'denny' is not known; there are permit, deny; 'deny' is meant?"),
        ('from = "ha"', "action: is missing"),
        (
            'action = "deny"\nfrom = "10.0.0.1/24"',
            '10.0.0.1/24 has bits behind its prefix: write "10.0.0.0/24"',
        ),
        ('action = "deny"\nfrom = "fe80::1%eth0"', "'fe80::1%eth0' has a zone, which packets do not: write fe80::1"),
        ('action = "deny"\nfrom = "10.0.0.300"', "from: '10.0.0.300' is no IP address or prefix"),
        ('action = "deny"\nto = "haa"', "edge, switch or SWITCH:PORT; 'ha' is meant?"),
        ('action = "deny"\nto = "both"', 'to: \'both\' is an edge and a switch; write "edge both" or "switch both"'),
        ('action = "deny"\nfrom = "03:00:00:00:00:01"', "from: 03:00:00:00:00:01 is the address of a group"),
        ('action = "deny"\nfrom = "10.0.0.1"\nto = "::1"', "from and to are of IPv4 and IPv6"),
        ('action = "deny"\nport = 22', 'port: needs protocol = "tcp" or "udp"'),
        ('action = "deny"\nprotocol = "tcp"\nport = "90-80"', "port: must be a port such as 80, or a range"),
        ('action = "deny"\nprotocol = "tcp"\nport = 0', "port: must be a port such as 80, or a range"),
        ('action = "deny"\nprotocol = "sctp"', "protocol: 'sctp' is not known; there are any, tcp, udp, icmp"),
        ('action = "deny"\nfrom = "ha"\nat = "A"', "at: from names a place already"),
        ('action = "deny"\nname = "12"', "name: '12' would be taken for an entry's number or the default"),
        ('action = "deny"\nprot = "tcp"', "prot: is not known here"),
    ],
)
def test_a_bad_entry_is_named_with_its_place_and_what_mends_it(tmp_path: Path, entry: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        list_of(tmp_path, f'[[acl]]\naction = "permit"\n[[acl]]\n{entry}\n')
    (line,) = str(refused.value).splitlines()
    assert ": acl 2" in line
    assert said in line


def test_a_list_that_takes_too_many_rules_is_refused_with_the_entry_that_takes_most(tmp_path: Path) -> None:
    wide = '[[acl]]\naction = "deny"\nprotocol = "tcp"\nport = "1-65534"\nfrom_port = "1-65534"\n'
    with pytest.raises(ConfigError) as refused:
        list_of(tmp_path, '[[acl]]\naction = "deny"\nfrom = "ha"\n' + wide)
    assert "at a switch with 2 edges, and may take 4096; most of them are of acl 2: " in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        list_of(tmp_path, '[[acl]]\naction = "deny"\nfrom = "ha"\n' * 1001)
    assert "acl: has 1001 entries, and may have 1000" in str(refused.value)
