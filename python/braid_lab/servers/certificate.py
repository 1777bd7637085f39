"""Certificates for servers of the lab, valid for a day: self-signed ones, and an authority with its own."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @staticmethod
    def make() -> Certificate:
        """Make a key and a self-signed certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _common_name("lab.invalid")
        return Certificate(_builder(name, name, key).sign(key, hashes.SHA256()), key)

    @staticmethod
    def authority() -> Certificate:
        """Make an authority, whose certificate a client trusts."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _common_name("The lab's authority")
        builder = _builder(name, name, key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return Certificate(builder.sign(key, hashes.SHA256()), key)

    def issue(self, host: str, key: ec.EllipticCurvePrivateKey) -> Certificate:
        """Issue a certificate for a host's name or address, as an authority."""
        builder = _builder(_common_name(host), self.certificate.subject, key)
        builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
        )
        return Certificate(builder.sign(self.key, hashes.SHA256()), key)

    def write(self, file: Path) -> None:
        """Write both to a PEM file."""
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(self.certificate.public_bytes(Encoding.PEM) + key)

    def fingerprint(self) -> str:
        """Return the key's fingerprint for browsers (RFC 7469 §2.4): SHA-256 of the public key's SPKI, in base64."""
        spki = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return base64.b64encode(hashlib.sha256(spki).digest()).decode()


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )
