"""The Debian kernels on which the product is tested, and the machines that boot them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from braid_lab.kernels.guest import Guest
from braid_lab.kernels.packages import fetch, mirror, newest
from braid_lab.kernels.uml import program
from braid_lab.process import LabError, run
from braid_lab.product import repository

#: Packages of the scenario in a root of another architecture, beside Debian's essential ones.
ROOT_PACKAGES = (
    "bash,bpftool,busybox-static,coreutils,curl,dash,ethtool,grep,iproute2,iputils-ping,kmod,libpython3-stdlib,mount,"
    "nftables,procps,python3-minimal,sed,util-linux"
)

#: Suite of that root: the one that the README names.
ROOT_SUITE = "bookworm"


@dataclass(frozen=True)
class Stock:
    """A kernel as Debian ships it: its source and its packages."""

    name: str
    suite: str
    #: A regular expression for the version in the names of its packages.
    version: str
    kind: Literal["qemu", "uml"] = "qemu"
    architecture: str = "amd64"

    def guest(self) -> Guest:
        """Fetch it and return a machine that boots it."""
        if self.kind == "uml":
            package = fetch(self.suite, "user-mode-linux")
            (modules,) = (package / "usr/lib/uml/modules").iterdir()
            return Guest(program(self.suite, package), modules, kind="uml")
        kernel, modules = self._image()
        root = Path("/") if self.architecture == native() else foreign_root(self.architecture)
        return Guest(kernel, modules, architecture=self.architecture, root=root)

    def _image(self) -> tuple[Path, Path]:
        """Return the kernel and its modules, from one package or, in newer suites, from two."""
        at = rf"{self.version}-{self.architecture}"
        try:
            name = newest(self.suite, rf"linux-image-{at}-unsigned", architecture=self.architecture)
            image = modules = fetch(self.suite, name, architecture=self.architecture)
        except LabError:
            name = newest(self.suite, rf"linux-binary-{at}", architecture=self.architecture)
            image = fetch(self.suite, name, architecture=self.architecture)
            parts = name.replace("linux-binary", "linux-modules")
            modules = fetch(self.suite, parts, architecture=self.architecture)
        kernels = [*image.glob("boot/vmlinuz-*"), *image.glob("usr/lib/modules/*/vmlinuz")]
        # A package that has been booted before has a link `lib` to its `usr/lib`.
        folders = {each.resolve() for each in modules.glob("**/lib/modules/*")}
        if len(kernels) != 1 or len(folders) != 1:
            raise LabError(f"{name}: {len(kernels)} kernels and {len(folders)} folders of modules are in it")
        return kernels[0], folders.pop()


#: From the oldest on. Debian has no kernel between 6.1 and 6.12, so 6.6 and 6.8 are unavailable. `newest` is
#: unstable's. User-Mode Linux has neither BTF nor a BPF JIT, and its verifier requires aligned accesses.
STOCK = (
    Stock("5.10", "bullseye", r"5\.10\.\d+-\d+"),
    Stock("6.1", "bookworm", r"6\.1\.\d+-\d+"),
    Stock("6.12", "trixie", r"6\.12\.\d+\+deb13"),
    Stock("newest", "sid", r"\d+\.\d+\.\d+\+deb\d+"),
    Stock("5.10-no-btf", "bullseye", "", "uml"),
    Stock("6.1-no-btf", "bookworm", "", "uml"),
    Stock("6.12-no-btf", "trixie", "", "uml"),
    Stock("newest-no-btf", "sid", "", "uml"),
    Stock("5.10-arm64", "bullseye", r"5\.10\.\d+-\d+", architecture="arm64"),
    Stock("6.1-arm64", "bookworm", r"6\.1\.\d+-\d+", architecture="arm64"),
    Stock("6.12-arm64", "trixie", r"6\.12\.\d+\+deb13", architecture="arm64"),
    Stock("newest-arm64", "sid", r"\d+\.\d+\.\d+\+deb\d+", architecture="arm64"),
)


def stock(name: str) -> Stock:
    """Return a kernel by its name."""
    return next(each for each in STOCK if each.name == name)


def native() -> str:
    """Return this machine's architecture, as Debian calls it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def binaries(architecture: str) -> Path:
    """Return the folder of the built programs for an architecture; LabError if they have not been built."""
    chosen = os.environ.get("BRAID_BIN") if architecture == native() else None
    target = {"amd64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}[architecture]
    built = repository() / "target" / ("release" if architecture == native() else f"{target}/release")
    folder = Path(chosen).resolve() if chosen else built
    if not (folder / "braid").exists():
        how = "make build" if architecture == native() else f"make build TARGET={target}"
        raise LabError(f"{folder}/braid does not exist: run `{how}`")
    return folder


def foreign_root(architecture: str) -> Path:
    """Return a root file system of another architecture from Debian's packages, unpacked but not configured."""
    root = repository() / ".tools" / "kernels" / f"root-{architecture}"
    if not root.exists():
        making = root.with_name(f"{root.name}.making")
        root.parent.mkdir(parents=True, exist_ok=True)
        run(["rm", "-rf", making])
        words: Sequence[str | Path] = [
            *("mmdebstrap", "--mode=root", "--variant=extract", f"--architectures={architecture}"),
            *("--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", f"--include={ROOT_PACKAGES}"),
            *(ROOT_SUITE, making, mirror()),
        ]
        run(words, timeout=900)
        making.rename(root)
    return root
