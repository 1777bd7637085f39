"""Secrets on disk, sealed by a key that is not on it: the credential `braid.seal`, which systemd decrypts.

The format is that of the daemons: `crates/braid-host/src/seal.rs` describes it.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

#: Name of the credential, and its least length in bytes.
CREDENTIAL, MIN_CREDENTIAL_BYTES = "braid.seal", 32

_VERSION = b"\x01"
_SALT_BYTES = 32
_NONCE = bytes(12)


class SealError(OSError):
    """The credential cannot be used, or contents cannot be opened by it."""


class SealKey:
    """The key that seals this machine's secrets."""

    def __init__(self, credential: bytes) -> None:
        self._root = hmac.digest(b"braid seal", credential, "sha256")

    @staticmethod
    def from_environment() -> SealKey | None:
        """Return the key of this service; None if its unit loads no such credential. Raises SealError."""
        folder = os.environ.get("CREDENTIALS_DIRECTORY")
        return SealKey.from_directory(Path(folder)) if folder else None

    @staticmethod
    def from_directory(folder: Path) -> SealKey | None:
        """Return the key of the credential in a directory; None if it is not there. Raises SealError."""
        path = folder / CREDENTIAL
        try:
            credential = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SealError(f"credential {CREDENTIAL}: {error}") from error
        if len(credential) < MIN_CREDENTIAL_BYTES:
            told = f"{path} has {len(credential)} bytes, and {MIN_CREDENTIAL_BYTES} are needed"
            raise SealError(f"credential {CREDENTIAL}: {told}")
        return SealKey(credential)

    def seal(self, name: str, contents: bytes) -> bytes:
        """Seal contents under a name."""
        # Only a machine that seals needs the library.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        salt = secrets.token_bytes(_SALT_BYTES)
        return _VERSION + salt + AESGCM(self._key(salt)).encrypt(_NONCE, contents, name.encode())

    def open(self, name: str, sealed: bytes) -> bytes:
        """Return what was sealed under this name; raises SealError."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        salt, body = sealed[1 : 1 + _SALT_BYTES], sealed[1 + _SALT_BYTES :]
        try:
            if sealed[:1] != _VERSION:
                raise InvalidTag
            return AESGCM(self._key(salt)).decrypt(_NONCE, body, name.encode())
        except (InvalidTag, ValueError) as error:
            raise SealError(f"{name}: sealed by another credential {CREDENTIAL}, or changed since") from error

    def _key(self, salt: bytes) -> bytes:
        return hmac.digest(self._root, salt, "sha256")
