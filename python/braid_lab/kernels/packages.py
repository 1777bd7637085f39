"""Debian packages of any suite, unpacked beside this machine's own packages and never installed.

apt fetches them from the mirror that the machine itself uses, and verifies them with Debian's keys. apt gets its own
list of sources and its own state, below `.tools/kernels`: the machine's package database is not touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from braid_lab.process import CommandError, LabError, run
from braid_lab.product import repository

#: Keys of Debian's archive, from the package debian-archive-keyring.
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

#: Greatest age of the package lists before they are fetched again.
LISTS_MAX_AGE_SECONDS = 24 * 3600.0

#: Time limit of one call of apt, for a slow network.
APT_TIMEOUT_SECONDS = 900.0

#: A mirror of Debian's main archive, as opposed to security updates and other vendors' archives.
_MIRROR = re.compile(r"[/:]debian(\.list|/.*)?$")


def fetch(suite: str, package: str, *, architecture: str = "amd64") -> Path:
    """Return the folder with the unpacked `package` of `suite`; download it first if necessary.

    A package whose version changes under the same name gets a new folder with its next version. Raises LabError if
    the suite has no such package or the mirror cannot be reached.
    """
    with _locked() as root:
        apt = _Apt(root, suite, architecture)
        apt.refresh(LISTS_MAX_AGE_SECONDS)
        folders = root / suite
        folder = folders / apt.file_of(package).removesuffix(".deb")
        if not folder.exists():
            with TemporaryDirectory(dir=root) as work:
                file = apt.download(package, Path(work))
                # The archive may have a newer version than the lists.
                folder = folders / file.stem
                run(["dpkg-deb", "--extract", file, Path(work) / "unpacked"], timeout=APT_TIMEOUT_SECONDS)
                folders.mkdir(exist_ok=True)
                if not folder.exists():
                    (Path(work) / "unpacked").rename(folder)
        return folder


def newest(suite: str, pattern: str, *, architecture: str = "amd64") -> str:
    """Return the package of `suite` whose whole name matches the regular expression, with the highest numbers.

    Raises LabError if none matches.
    """
    with _locked() as root:
        apt = _Apt(root, suite, architecture)
        apt.refresh(LISTS_MAX_AGE_SECONDS)
        names = [name for name in apt.names() if re.fullmatch(pattern, name)]
    if not names:
        raise LabError(f"{suite} has no package for {architecture} that matches {pattern}")
    return max(names, key=_numbers)


def _numbers(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", name)]


@contextlib.contextmanager
def _locked() -> Iterator[Path]:
    """Lock this folder for one process."""
    root = repository() / ".tools" / "kernels"
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield root


class _Apt:
    """apt with one suite of one architecture, independent of the machine's own state."""

    def __init__(self, root: Path, suite: str, architecture: str) -> None:
        self.state = root / "apt" / f"{suite}-{architecture}"
        for folder in ("lists/partial", "cache/archives/partial"):
            (self.state / folder).mkdir(parents=True, exist_ok=True)
        self.sources = self.state / "sources.list"
        self.status = self.state / "status"
        self.status.touch()
        self.fetched = self.state / "fetched"
        self.suite = suite
        settings = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            # Root's folders may be closed to apt's own user, and another user cannot change to it.
            "APT::Sandbox::User": "",
            "Dir::Etc::sourcelist": self.sources,
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State": self.state,
            "Dir::State::lists": self.state / "lists",
            "Dir::State::status": self.status,
            "Dir::Cache": self.state / "cache",
            "Acquire::Languages": "none",
        }
        self.options = [f"-o{key}={value}" for key, value in settings.items()]

    def refresh(self, max_age: float) -> None:
        """Fetch the lists if they are over `max_age` seconds old; keep old ones while the mirror is unreachable."""
        source = f"deb [signed-by={KEYRING}] {mirror()} {self.suite} main\n"
        known = self.fetched.exists() and self.sources.read_text() == source
        if known and time.time() - self.fetched.stat().st_mtime < max_age:
            return
        self.sources.write_text(source)
        try:
            self._call("apt-get", "update", "-qq", "--error-on=any")
        except CommandError:
            if not known:
                raise
            return
        self.fetched.touch()

    def names(self) -> list[str]:
        """Return the names of all packages."""
        return self._call("apt-cache", "pkgnames").split()

    def file_of(self, package: str) -> str:
        """Return the file name of a package's newest version, in the archive and here."""
        try:
            stanza = self._call("apt-cache", "show", "--no-all-versions", package)
        except CommandError as error:
            raise LabError(f"{self.suite} has no package {package}") from error
        fields = dict(re.findall(r"^(Package|Version|Architecture): (.*)$", stanza, re.MULTILINE))
        version = fields["Version"].replace(":", "%3a")
        return f"{fields['Package']}_{version}_{fields['Architecture']}.deb"

    def download(self, package: str, folder: Path) -> Path:
        """Download a package into `folder`, with fresh lists if the archive has removed the listed version."""
        try:
            self._call("apt-get", "download", "-qq", package, folder=folder)
        except CommandError:
            self.refresh(0)
            self._call("apt-get", "download", "-qq", package, folder=folder)
        (file,) = folder.glob("*.deb")
        return file

    def _call(self, *words: str, folder: Path | None = None) -> str:
        where = ["env", "-C", str(folder)] if folder else []
        command, *rest = words
        return run([*where, command, *self.options, *rest], timeout=APT_TIMEOUT_SECONDS).stdout


def mirror() -> str:
    """Return the mirror of Debian's archive: DEBIAN_MIRROR if set, else this machine's.

    Raises LabError if there is none.
    """
    chosen = os.environ.get("DEBIAN_MIRROR")
    if chosen:
        return chosen
    folder = Path("/etc/apt")
    for file in [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]:
        if file.suffix in (".list", ".sources") and file.exists():
            found = mirrors(file.read_text(), deb822=file.suffix == ".sources")
            if found:
                return found[0]
    raise LabError("/etc/apt names no mirror of Debian: set DEBIAN_MIRROR to the address of one")


def mirrors(sources: str, *, deb822: bool) -> list[str]:
    """Return the mirrors of Debian's main archive in the text of a sources file, in its order."""
    uris = _uris_deb822(sources) if deb822 else _uris_one_line(sources)
    return [uri for uri in uris if _MIRROR.search(uri)]


def _uris_one_line(text: str) -> list[str]:
    """Return the addresses of sources in apt's one-line format that Debian's keys sign."""
    found = []
    for options, uri in re.findall(r"^\s*deb\s+(?:\[([^\]]*)\]\s*)?(\S+)", text, re.MULTILINE):
        if "signed-by" not in options.lower() or str(KEYRING) in options:
            found.append(uri)
    return found


def _uris_deb822(text: str) -> list[str]:
    """Return the addresses of sources in apt's deb822 format that Debian's keys sign."""
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        fields = {key.lower(): value for key, value in re.findall(r"^([\w-]+):[ \t]*(.*)$", stanza, re.MULTILINE)}
        on = "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() != "no"
        if on and fields.get("signed-by", str(KEYRING)) == str(KEYRING):
            found += fields.get("uris", "").split()
    return found
