"""An HTTP/3 server: GET /bytes/N and GET /address, as over HTTP/1.1, and GET /talk, a page that sends requests.

It makes a certificate at its start, unless `--pem FILE` has one. Run as `python -m braid_lab.servers.http3 [--pem
FILE] ADDRESS…`; prints `ready`.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent

from braid_lab.servers.catalog import QUIC_PORT
from braid_lab.servers.certificate import Certificate

#: A page that sends ten requests a second.
TALK = Path(__file__).parent.parent / "templates" / "talk.html"


class Http3(QuicConnectionProtocol):
    """One connection."""

    _http: H3Connection | None = None

    def quic_event_received(self, event: QuicEvent) -> None:
        """Answer every request whose headers are complete."""
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
            # The current path of the packets: it follows the client's migration.
            peer = self._quic._network_paths[0].addr
            body = f"{peer[0]} {peer[1]}\n".encode()
        elif path == b"/talk":
            body = TALK.read_bytes()
        else:
            status = b"404"
        self._http.send_headers(stream, [(b":status", status), (b"content-length", b"%d" % len(body))])
        self._http.send_data(stream, body, end_stream=True)
        self.transmit()


def _configuration(pem: str | None) -> QuicConfiguration:
    """Use a key and a certificate from a file, or new ones."""
    # As for TCP in the lab.
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN, congestion_control_algorithm="cubic")
    if pem is not None:
        configuration.load_cert_chain(pem)
        return configuration
    made = Certificate.make()
    configuration.certificate, configuration.private_key = made.certificate, made.key
    return configuration


async def main(addresses: list[str], pem: str | None) -> None:
    """Serve until SIGTERM."""
    done = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
    configuration = _configuration(pem)
    for address in addresses:
        await serve(address, QUIC_PORT, configuration=configuration, create_protocol=Http3)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await done.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--pem")
    parser.add_argument("address", nargs="+")
    options = parser.parse_args()
    asyncio.run(main(options.address, options.pem))
