"""TLS between switches and controller: both show certificates of one authority (as `ovs-pki` makes them)."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files."""

    certificate: Path
    key: Path
    #: The authority that signed the switches' certificates; others are refused.
    authority: Path


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a server's context: TLS 1.2 or later, a client certificate is required.

    Raises OSError or ssl.SSLError for files that are missing or do not belong together.
    """
    # Not `create_default_context`: since Python 3.13 that refuses an authority that does not state its key's usage,
    # and those of ovs-pki do not.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context
