"""TLS of the controller: towards switches, and towards servers that it asks; both sides show certificates."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files."""

    certificate: Path
    key: Path
    #: The authority that signed the other side's certificates; others are refused.
    authority: Path


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a server's context: TLS 1.2 or later, a client certificate is required.

    Raises OSError or ssl.SSLError for files that are missing or do not belong together.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, files)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a client's context: TLS 1.2 or later, the server's name has to be in its certificate.

    Raises OSError or ssl.SSLError for files that are missing or do not belong together.
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, files)


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    # Not `create_default_context`: since Python 3.13 that refuses an authority that does not state its key's usage,
    # and those of ovs-pki do not.
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authority)
    return context
