"""A page's login tokens and certificate, in the state directory, and the report about them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braid_sdn.web import state_file
from braid_sdn.web.auth import Role, WebAuth, new_token
from braid_sdn.web.certificate import SelfMade, TlsIdentity, load, names_of
from braid_sdn.web.login_attempts import Address, canonical
from braid_sdn.web.seal import SealKey


@dataclass(frozen=True)
class WebSettings:
    """`[web]` of a configuration."""

    #: Address and port of the page. A loopback address is served by HTTP, any other by HTTPS alone.
    listen: tuple[Address, int]
    #: Names by which browsers may call this machine, besides `localhost` and its address.
    names: tuple[str, ...] = ()
    #: PEM files of the certificate, with those above it, and of its key; None to have one made.
    certificate: Path | None = None
    key: Path | None = None


class WebAccess:
    """Login tokens of a page, and its certificate."""

    def __init__(self, state_dir: Path, prefix: str, seal: SealKey | None = None) -> None:
        """Read the tokens that were given out. The names of its files begin with `prefix`; `seal` seals them."""
        self._seal = seal
        self._tokens = state_dir / f"{prefix}-tokens.json"
        self._certificate = state_dir / f"{prefix}-certificate.json"
        self.auth = WebAuth(_tokens(self._tokens, seal))
        #: Fingerprint of the certificate that is served.
        self.fingerprint: str | None = None

    def token(self, role: Role, *, new: bool = False) -> str:
        """Return the token of a role; make one if there is none, or another one if wanted. Raises OSError."""
        known = self.auth.tokens.get(role)
        if known is not None and not new:
            return known
        tokens = {**self.auth.tokens, role: new_token()}
        state_file.write(self._tokens, {each.word: tokens.get(each) for each in Role}, self._seal)
        self.auth.tokens = tokens
        return tokens[role]

    def report(self, role: Role, settings: WebSettings | None, *, new: bool = False) -> dict[str, Any]:
        """Return a role's token, and where it is good for; raises OSError."""
        told = {"role": role.word, "token": self.token(role, new=new), "urls": urls(settings)}
        return {**told, "certificate_sha256": self.fingerprint} if self.fingerprint else told

    def identity(self, settings: WebSettings, clock: float) -> TlsIdentity | None:
        """Return the certificate to serve; None where HTTP is enough. Raises OSError."""
        found = self._identity(settings, clock)
        self.fingerprint = found.fingerprint if found is not None else None
        return found

    def _identity(self, settings: WebSettings, clock: float) -> TlsIdentity | None:
        if settings.certificate is not None and settings.key is not None:
            return load(settings.certificate, settings.key)
        listen, _ = settings.listen
        if not is_network(listen):
            return None
        names = names_of(listen, settings.names)
        try:
            kept = SelfMade.stored(state_file.read(self._certificate, self._seal))
        except (OSError, ValueError):
            kept = None
        if kept is None or not kept.serves(names, clock):
            kept = SelfMade.make(names, clock)
            state_file.write(self._certificate, kept.store(), self._seal)
        return kept.identity()


def _tokens(path: Path, seal: SealKey | None) -> dict[Role, str]:
    """Return the stored tokens. A file that cannot be read is no reason not to start: `token --new` makes others."""
    try:
        stored = state_file.read(path, seal)
    except (OSError, ValueError):
        return {}
    known = stored if isinstance(stored, dict) else {}
    return {role: known[role.word] for role in Role if isinstance(known.get(role.word), str)}


def is_network(listen: Address) -> bool:
    """Return true if what is served there leaves the machine."""
    return not canonical(listen).is_loopback


def urls(settings: WebSettings | None) -> list[str]:
    """Return the addresses of the page for a browser's address bar; none if it is not served."""
    if settings is None:
        return []
    listen, port = settings.listen
    tls = settings.certificate is not None or is_network(listen)
    own = "localhost" if listen.is_unspecified else str(listen)
    shown = f"[{own}]" if isinstance(listen, ipaddress.IPv6Address) and not listen.is_unspecified else own
    return [f"{'https' if tls else 'http'}://{host}:{port}/" for host in (*settings.names, shown)]
