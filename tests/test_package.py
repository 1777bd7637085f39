"""The Debian package: what is in it, and that it says and does what its own binary means."""

from __future__ import annotations

import gzip
import stat
from pathlib import Path

import pytest

from braid_lab.process import run
from braid_lab.product import binary, repository

UNIT = "usr/lib/systemd/system/braid.service"
HUB_UNIT = "usr/lib/systemd/system/braid-hub.service"
WANTED = (
    "usr/bin/braid",
    UNIT,
    HUB_UNIT,
    "etc/braid/braid.toml",
    "etc/braid/hub.toml",
    "usr/share/man/man1/braid.1.gz",
    "usr/share/man/man1/braid-run.1.gz",
    "usr/share/man/man1/braid-config-check.1.gz",
    "usr/share/bash-completion/completions/braid",
    "usr/share/zsh/vendor-completions/_braid",
    "usr/share/fish/vendor_completions.d/braid.fish",
    "usr/share/doc/braid/README.md",
    "usr/share/doc/braid/configuration.md",
    "usr/share/doc/braid/api.schema.json",
    "usr/share/doc/braid/copyright",
    "usr/share/doc/braid/changelog.gz",
)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package as `make package` does."""
    output = tmp_path_factory.mktemp("package")
    built = run([repository() / "packaging/debian/build", binary(), output], timeout=300)
    return Path(built.stdout.strip())


@pytest.fixture(scope="module")
def unpacked(package: Path) -> Path:
    """Unpack it, maintainer scripts too."""
    root = package.parent / "root"
    run(["dpkg-deb", "--raw-extract", package, root])
    return root


def test_everything_is_where_it_belongs(unpacked: Path) -> None:
    files = {str(file.relative_to(unpacked)) for file in unpacked.rglob("*") if file.is_file()}
    assert set(WANTED) <= files, set(WANTED) - files
    # Nothing that a machine's owner did not ask for.
    places = ("usr/bin/", "usr/lib/systemd/", "usr/share/", "etc/braid/", "DEBIAN/")
    assert [file for file in files if not file.startswith(places)] == []


def test_owners_and_modes_are_a_packages(package: Path, unpacked: Path) -> None:
    listed = run(["dpkg-deb", "--contents", package]).stdout.splitlines()
    assert {line.split()[1] for line in listed} == {"root/root"}
    writable = [line for line in listed if line[5] == "w" or line[8] == "w"]
    assert writable == []
    for script in ("postinst", "prerm", "postrm"):
        assert (unpacked / "DEBIAN" / script).stat().st_mode & stat.S_IXUSR


def test_what_the_package_says_of_itself(package: Path, unpacked: Path) -> None:
    fields = ("Package", "Version", "Depends", "Installed-Size")
    said = run(["dpkg-deb", "--field", package, *fields]).stdout
    values = dict(line.split(": ", 1) for line in said.splitlines())
    version = run([binary(), "version"]).stdout.split()[1]
    assert (values["Package"], values["Version"]) == ("braid", version)
    assert "libc6" in values["Depends"]
    assert int(values["Installed-Size"]) > 1000
    assert (unpacked / "DEBIAN/conffiles").read_text() == "/etc/braid/braid.toml\n/etc/braid/hub.toml\n"
    sums = (unpacked / "DEBIAN/md5sums").read_text().splitlines()
    assert any(line.endswith("  usr/bin/braid") for line in sums)


def test_the_example_is_a_valid_configuration_that_changes_nothing(unpacked: Path) -> None:
    example = unpacked / "etc/braid/braid.toml"
    shipped = unpacked / "usr/bin/braid"
    effective: list[str | Path] = [shipped, "config", "show", "--effective", "--config"]
    nothing = unpacked / "nothing.toml"
    nothing.write_text("")
    assert run([*effective, example]).stdout == run([*effective, nothing]).stdout
    # What it shows is right too: every commented line is one that may be uncommented.
    words = [line.removeprefix("#") for line in example.read_text().splitlines() if not line.startswith("# ")]
    whole = unpacked / "whole.toml"
    whole.write_text("\n".join(words).replace('group = "adm"', 'group = "root"') + "\n")
    run([shipped, "config", "check", whole])


def test_pages_and_completions_are_about_every_command(unpacked: Path) -> None:
    page = gzip.decompress((unpacked / "usr/share/man/man1/braid.1.gz").read_bytes()).decode()
    bash = (unpacked / "usr/share/bash-completion/completions/braid").read_text()
    for command in ("up", "explain", "top", "events", "run", "doctor", "hub", "keygen"):
        assert f"braid\\-{command}" in page
        assert (unpacked / f"usr/share/man/man1/braid-{command}.1.gz").is_file()
        assert command in bash
    run(["bash", "-n", unpacked / "usr/share/bash-completion/completions/braid"])


@pytest.mark.parametrize("unit", [UNIT, HUB_UNIT])
def test_the_units_are_ones_that_systemd_takes(unpacked: Path, unit: str) -> None:
    text = (unpacked / unit).read_text()
    # The machine that tests has the targets, and the package's program somewhere else.
    copy = unpacked.parent / Path(unit).name
    copy.write_text(text.replace("/usr/bin/braid", str(unpacked / "usr/bin/braid")))
    said = run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", copy], check=False)
    assert (said.status, [line for line in said.text.splitlines() if "braid" in line]) == (0, []), said.text


def test_the_daemon_has_no_mount_namespace_of_its_own(unpacked: Path) -> None:
    text = (unpacked / UNIT).read_text()
    # A mount namespace of its own would take the datapath along when the service stops.
    for option in ("ProtectSystem", "ProtectHome", "PrivateTmp", "ProtectKernelModules", "RuntimeDirectory"):
        assert f"\n{option}=" not in text
