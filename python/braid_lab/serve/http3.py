"""An HTTP/3 server: GET /bytes/N and GET /address, as the HTTP/1.1 one, over QUIC.

Its certificate is made when it starts and is worth nothing outside the lab. Run as
`python -m braid_lab.serve.http3 ADDRESS…`; prints `ready`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import UTC, datetime, timedelta

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from braid_lab.serve.servers import QUIC_PORT


class Http3(QuicConnectionProtocol):
    """One connection."""

    _http: H3Connection | None = None

    def quic_event_received(self, event: QuicEvent) -> None:
        """Answer every request that is complete with its headers."""
        if self._http is None:
            self._http = H3Connection(self._quic)
        for each in self._http.handle_event(event):
            if isinstance(each, HeadersReceived):
                self._answer(each.stream_id, dict(each.headers).get(b":path", b"/"))

    def _answer(self, stream: int, path: bytes) -> None:
        assert self._http is not None  # noqa: S101
        status, body = b"200", b""
        if path.startswith(b"/bytes/") and path[7:].isdigit():
            body = bytes(int(path[7:]))
        elif path == b"/address":
            # The path the packets come by right now: it follows the client when that moves.
            peer = self._quic._network_paths[0].addr
            body = f"{peer[0]} {peer[1]}\n".encode()
        else:
            status = b"404"
        self._http.send_headers(stream, [(b":status", status), (b"content-length", b"%d" % len(body))])
        self._http.send_data(stream, body, end_stream=True)
        self.transmit()


def _configuration() -> QuicConfiguration:
    """Make a key and a certificate signed by itself, good for a day."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab.invalid")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    # As TCP has it in the lab.
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN, congestion_control_algorithm="cubic")
    configuration.certificate = certificate
    configuration.private_key = key
    return configuration


async def main(addresses: list[str]) -> None:
    """Serve until SIGTERM."""
    done = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
    configuration = _configuration()
    for address in addresses:
        await serve(address, QUIC_PORT, configuration=configuration, create_protocol=Http3)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await done.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
