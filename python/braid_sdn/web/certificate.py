"""Certificates of the page: given ones, or one that the program makes for itself."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import re
import ssl
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from braid_sdn.web.login_attempts import Address

DAY = 24 * 3600
#: Lifetime of a certificate of our own, seconds: Apple's browsers take none of more than 825 days.
SELF_MADE_LIFETIME = 820 * DAY
#: Remaining lifetime at which it is replaced.
RENEWAL = 30 * DAY
#: Clocks of browsers are behind ours by no more than this.
CLOCK_ERROR = DAY

_FIRST = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True)
class TlsIdentity:
    """A certificate chain and its key, ready to serve."""

    context: ssl.SSLContext
    #: SHA-256 of the certificate, as browsers show it: `AB:CD:…`.
    fingerprint: str


def load(certificate: Path, key: Path) -> TlsIdentity:
    """Read a chain and its key from PEM files; raises OSError, which ssl.SSLError is too, with both names."""
    try:
        first = _FIRST.search(certificate.read_bytes())
        if first is None:
            raise OSError("no certificate in it")
        return _identity(first[0], certificate, key)
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(
            f"certificate {certificate} with key {key}: {why}; [web] certificate and key name PEM files that belong "
            "together"
        ) from error


def _identity(first: bytes, certificate: Path, key: Path) -> TlsIdentity:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Without an empty password OpenSSL would ask the terminal for the one of a sealed key.
    context.load_cert_chain(certificate, key, password="")
    context.set_alpn_protocols(["http/1.1"])
    shown = hashlib.sha256(ssl.PEM_cert_to_DER_cert(first.decode("ascii"))).hexdigest().upper()
    return TlsIdentity(context, ":".join(shown[at : at + 2] for at in range(0, len(shown), 2)))


@dataclass(frozen=True)
class SelfMade:
    """A certificate of our own with its key, as it is stored."""

    certificate: str
    key: str
    names: list[str]
    #: Seconds since 1970.
    expires: int

    @classmethod
    def make(cls, names: list[str], clock: float) -> SelfMade:
        """Make one for these addresses and names."""
        # Slow to load, and of no use to a fabric without such a page.
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        def moment(seconds: float) -> datetime.datetime:
            return datetime.datetime.fromtimestamp(seconds, datetime.UTC)

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Braid fabric controller")])
        expires = int(clock) + SELF_MADE_LIFETIME
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(moment(clock - CLOCK_ERROR))
            .not_valid_after(moment(expires))
            .add_extension(x509.SubjectAlternativeName([_general(each) for each in names]), critical=False)
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return cls(certificate.public_bytes(pem).decode(), secret.decode(), names, expires)

    @classmethod
    def stored(cls, content: Any) -> SelfMade | None:
        """Return the one of a file; None if there is none, or it is damaged."""
        try:
            return cls(**content)
        except TypeError:
            return None

    def store(self) -> dict[str, Any]:
        """Return what is stored."""
        return asdict(self)

    def serves(self, names: list[str], clock: float) -> bool:
        """Return true if it is for these names and lives long enough."""
        return self.names == names and self.expires > clock + RENEWAL

    def identity(self) -> TlsIdentity:
        """Make it ready to serve; raises OSError if the stored text was changed."""
        # OpenSSL reads files alone. This one is in memory, and nobody else's.
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "w") as file:
            file.write(self.key + self.certificate)
            file.flush()
            path = Path(f"/proc/self/fd/{descriptor}")
            return _identity(self.certificate.encode(), path, path)


def _general(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def names_of(listen: Address, more: tuple[str, ...]) -> list[str]:
    """Return the names in a certificate of a server at `listen`."""
    return ["localhost", *([] if listen.is_unspecified else [str(listen)]), *more]
