"""`braid lab analyze`: flows, sites and protocols of captures, and what flow balancing could gain for them."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path

import dpkt  # type: ignore[import-untyped]
import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from braid_lab import cli
from braid_lab.capture.flows import Flow, Visit, read
from braid_lab.capture.hello import Initials, Pieces, of_tcp
from braid_lab.capture.packets import packets
from braid_lab.capture.what_if import estimate
from braid_lab.packets.codec import Flag, Packet, Tcp, Udp, encode
from braid_lab.process import LabError

CLIENT, SERVER = "192.0.2.7", "198.51.100.1"
#: Bare IP packets.
RAW = 101

Timed = tuple[float, bytes]


def client_hello(name: str, alpn: list[str]) -> bytes:
    """Return the first bytes of a real TLS client."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(alpn)
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def quic_initials(name: str) -> list[bytes]:
    """Return the first datagrams of a real QUIC client."""
    client = QuicConnection(configuration=QuicConfiguration(server_name=name, alpn_protocols=["h3"]))
    client.connect((SERVER, 443), now=0.0)
    return [datagram for datagram, _ in client.datagrams_to_send(now=0.0)]


def tcp_flow(at: float, port: int, name: str, alpn: list[str], size: int, *, step: float = 0.01) -> list[Timed]:
    """Return a TCP connection's packets: its opening, a ClientHello in two segments out of order, and data."""
    hello = client_hello(name, alpn)

    def up(flags: Flag, seq: int, data: bytes = b"") -> bytes:
        return encode(Packet(CLIENT, SERVER, Tcp(port, 443, flags, seq=seq, data=data)))

    def down(flags: Flag, data: bytes = b"") -> bytes:
        return encode(Packet(SERVER, CLIENT, Tcp(443, port, flags, data=data)))

    # The sequence numbers wrap within the ClientHello.
    start = 2**32 - 100
    sent = [
        up(Flag.SYN, start),
        down(Flag.SYN | Flag.ACK),
        up(Flag.ACK, (start + 1 + 200) % 2**32, hello[200:]),
        up(Flag.ACK, start + 1, hello[:200]),
        *(down(Flag.ACK, bytes(min(1000, size - sent))) for sent in range(0, size, 1000)),
    ]
    return [(at + number * step, each) for number, each in enumerate(sent)]


def quic_flow(at: float, port: int, name: str, size: int) -> list[Timed]:
    sent = [encode(Packet(CLIENT, SERVER, Udp(port, 443, each))) for each in quic_initials(name)]
    sent += [encode(Packet(SERVER, CLIENT, Udp(443, port, bytes(1000)))) for _ in range(0, size, 1000)]
    return [(at + 0.01 * number, each) for number, each in enumerate(sent)]


def capture(file: Path, sent: Iterable[Timed], *, ng: bool = False) -> Path:
    with file.open("wb") as raw:
        writer = dpkt.pcapng.Writer(raw, linktype=RAW) if ng else dpkt.pcap.Writer(raw, linktype=RAW)
        for at, packet in sorted(sent):
            writer.writepkt(packet, ts=at)
    return file


@pytest.mark.parametrize("ng", [False, True])
def test_sites_are_told_apart_by_silence_and_named_by_their_first_server(tmp_path: Path, ng: bool) -> None:
    sent = [
        *tcp_flow(100.0, 5001, "www.one.test", ["http/1.1"], 20_000),
        *tcp_flow(100.1, 5002, "img.one.test", ["h2", "http/1.1"], 300_000),
        *tcp_flow(110.0, 5003, "www.two.test", ["h2", "http/1.1"], 5_000),
        *quic_flow(110.05, 5004, "cdn.two.test", 40_000),
        # A question to a name server is none of the web's.
        (109.99, encode(Packet(CLIENT, SERVER, Udp(5005, 53, b"question")))),
    ]
    traffic = read([capture(tmp_path / "x", sent, ng=ng)])
    assert [(visit.site, len(visit.flows), visit.concurrency) for visit in traffic.visits] == [
        ("www.one.test", 2, 2),
        ("www.two.test", 2, 2),
    ]
    found = {flow.name: flow for flow in traffic.flows()}
    assert {name: flow.protocol for name, flow in found.items()} == {
        "www.one.test": "HTTP/1.1 (TCP)",
        "img.one.test": "HTTP/2 offered (TCP)",
        "www.two.test": "HTTP/2 offered (TCP)",
        "cdn.two.test": "HTTP/3 (QUIC)",
    }
    assert 300_000 < found["img.one.test"].bytes < 330_000
    # The second began when the document's first 6 kB had come.
    assert 4_000 < found["img.one.test"].began_after < 10_000
    assert traffic.other_packets == 1


def test_no_visit_goes_on_in_another_file(tmp_path: Path) -> None:
    files = [
        capture(tmp_path / str(number), tcp_flow(100.0 + number / 10, 5001, f"www.{number}.test", ["h2"], 1000))
        for number in range(3)
    ]
    assert [visit.site for visit in read(files).visits] == ["www.0.test", "www.1.test", "www.2.test"]


def test_a_large_segment_of_which_only_the_beginning_was_captured_counts_whole(tmp_path: Path) -> None:
    whole = encode(Packet(SERVER, CLIENT, Tcp(443, 5001, Flag.ACK, data=bytes(9000))))
    file = tmp_path / "x"
    with file.open("wb") as raw:
        dpkt.pcap.Writer(raw, linktype=RAW).writepkt(whole[:120], ts=1.0)
    (packet,) = packets(file)
    assert (packet.length, packet.payload_length, len(packet.payload)) == (9040, 9000, 80)


def test_a_quic_client_hello_is_read_and_a_damaged_one_is_none() -> None:
    datagrams = quic_initials("www.one.test")
    hello = Initials().add(datagrams[0])
    assert hello is not None
    assert (hello.server, hello.alpn) == ("www.one.test", ("h3",))
    for end in range(0, 500, 50):
        assert Initials().add(datagrams[0][:end]) is None
    assert Initials().add(datagrams[0][:50] + b"\xff" + datagrams[0][51:]) is None


def test_what_is_no_client_hello_is_none() -> None:
    hello = client_hello("www.one.test", ["h2"])
    assert of_tcp(hello) is not None
    for end in range(0, len(hello), 7):
        assert of_tcp(hello[:end]) is None
    assert of_tcp(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00") is None
    assert of_tcp(b"SSH-2.0-x\r\n") is None
    host = of_tcp(b"GET / HTTP/1.1\r\nHost: Plain.Test:80\r\n\r\n")
    assert host is not None
    assert host.server == "plain.test"
    pieces = Pieces()
    pieces.add(3, b"defg")
    assert pieces.beginning() == b""
    pieces.add(0, b"abcd")
    assert pieces.beginning() == b"abcdefg"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "neither a pcap nor a pcapng"), (b"no capture at all, only text", "neither a pcap nor a pcapng")],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "x"
    file.write_bytes(content)
    with pytest.raises(LabError, match=reason):
        read([file])
    with pytest.raises(LabError, match="No such file"):
        read([tmp_path / "none"])


def visit(*flows: tuple[int, int]) -> Visit:
    """Return a visit of flows: after how many bytes each began, and its size."""
    made = [Flow("tcp", (CLIENT, 1), (SERVER, 443), 0.0, 1.0, bytes=size, began_after=after) for after, size in flows]
    return Visit(made, sum(size for _, size in flows), 1.0)


def test_the_estimate_is_what_arithmetic_says() -> None:
    # One flow gains nothing from a second line, except by packets.
    alone = estimate(visit((0, 1_000_000)), [8, 8])
    assert (alone.single, alone.wrr, alone.packets) == pytest.approx((1.0, 1.0, 0.5))
    # Two equal flows at once: each has a line.
    two = estimate(visit((0, 1_000_000), (0, 1_000_000)), [8, 8])
    assert (two.single, two.wrr, two.least_loaded) == pytest.approx((2.0, 1.0, 1.0))
    # The second begins when half of the first has come: 0.5 s, then each has its line for another second.
    after = estimate(visit((0, 1_000_000), (500_000, 1_000_000)), [8, 8])
    assert (after.single, after.wrr) == pytest.approx((2.0, 1.5))
    # Round robin has put both large ones on one line.
    uneven = estimate(visit((0, 1_000_000), (0, 1_000), (0, 1_000_000)), [8, 8])
    assert uneven.wrr == pytest.approx(2.0)
    # A line of three times the rate gets three flows of four.
    four = estimate(visit(*[(0, 1_000_000)] * 4), [24, 8])
    assert four.wrr == pytest.approx(1.0)


def test_the_command_prints_sites_gains_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = [
        *tcp_flow(100.0, 5001, "www.one.test", ["http/1.1"], 100_000),
        *tcp_flow(100.1, 5002, "img.one.test", ["http/1.1"], 100_000),
    ]
    file = capture(tmp_path / "x.pcap", sent)
    out = tmp_path / "out"
    words = ["analyze", str(file), "--what-if", "10Mbit/s,10Mbit/s", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["braid-lab", *words])
    cli.main()
    said = capsys.readouterr().out
    assert "www.one.test" in said
    assert "Estimated gain over lines of 10 and 10 Mbit/s" in said
    assert {each.name for each in out.iterdir()} >= {"analysis.json", "flows_per_site.svg", "flow_sizes.svg"}
    monkeypatch.setattr("sys.argv", ["braid-lab", "analyze", str(file), "--what-if", "fast"])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert 'rate "fast"' in capsys.readouterr().err
