"""The Debian packages: their content, and the consistency of units, pages and examples with the programs."""

from __future__ import annotations

import gzip
import io
import re
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from braid_lab.process import run
from braid_lab.product import binary, repository
from braid_sdn.fabric.config import read

UNIT = "usr/lib/systemd/system/braid.service"
HUB_UNIT = "usr/lib/systemd/system/braid-hub.service"
BOOT_UNIT = "usr/lib/systemd/system/braid-hub-boot.service"
EDGE_UNIT = "usr/lib/systemd/system/braid-edge@.service"
SDN_UNIT = "usr/lib/systemd/system/braid-sdn.service"
#: Modification time of everything in the packages, in seconds since 1970.
DATE = 1_700_000_000
WANTED = (
    "usr/bin/braid",
    UNIT,
    HUB_UNIT,
    BOOT_UNIT,
    EDGE_UNIT,
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
    "usr/share/doc/braid/examples/edge.conf",
    "usr/share/doc/braid/copyright",
    "usr/share/doc/braid/changelog.gz",
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build all packages as `make package` does, without compression, which takes a minute; by name."""
    output = tmp_path_factory.mktemp("package")
    scripts = repository() / "packaging/debian"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SOURCE_DATE_EPOCH", str(DATE))
        environment.setenv("COMPRESSION", "none")
        built = [
            *run([scripts / "build", binary(), output], timeout=300).stdout.split(),
            *run([scripts / "build-sdn", output], timeout=300).stdout.split(),
        ]
    return {Path(file).name.partition("_")[0]: Path(file) for file in built}


@pytest.fixture(scope="module")
def roots(packages: dict[str, Path]) -> dict[str, Path]:
    """Unpack them, including maintainer scripts."""
    found = {}
    for name, package in packages.items():
        found[name] = package.parent / f"root-{name}"
        run(["dpkg-deb", "--raw-extract", package, found[name]])
    return found


@pytest.fixture(scope="module")
def package(packages: dict[str, Path]) -> Path:
    """The package of the program itself."""
    return packages["braid"]


@pytest.fixture(scope="module")
def unpacked(roots: dict[str, Path]) -> Path:
    """The same, unpacked."""
    return roots["braid"]


def files_in(root: Path) -> set[str]:
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


def test_everything_is_where_it_belongs(unpacked: Path) -> None:
    files = files_in(unpacked)
    assert set(WANTED) <= files, set(WANTED) - files
    # Nothing outside these folders.
    places = ("usr/bin/", "usr/lib/systemd/", "usr/share/", "etc/braid/", "DEBIAN/")
    assert [file for file in files if not file.startswith(places)] == []


@pytest.mark.parametrize("name", ["braid", "braid-dbgsym", "braid-sdn"])
def test_owners_and_modes_are_a_packages(packages: dict[str, Path], roots: dict[str, Path], name: str) -> None:
    package = packages[name]
    listed = run(["dpkg-deb", "--contents", package]).stdout.splitlines()
    assert {line.split()[1] for line in listed} == {"root/root"}
    writable = [line for line in listed if line[0] != "l" and (line[5] == "w" or line[8] == "w")]
    assert writable == []
    if name != "braid-dbgsym":
        for script in ("postinst", "prerm", "postrm"):
            assert (roots[name] / "DEBIAN" / script).stat().st_mode & stat.S_IXUSR


@pytest.mark.parametrize("name", ["braid", "braid-dbgsym", "braid-sdn"])
def test_a_package_is_the_same_whenever_it_is_built(packages: dict[str, Path], name: str) -> None:
    tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", packages[name]], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(tar)) as files:
        assert {file.mtime for file in files} == {DATE}


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
    # The example is valid too: every commented line may be uncommented.
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


@pytest.mark.parametrize(
    ("name", "unit"),
    [("braid", UNIT), ("braid", HUB_UNIT), ("braid", BOOT_UNIT), ("braid", EDGE_UNIT), ("braid-sdn", SDN_UNIT)],
)
def test_the_units_are_ones_that_systemd_takes(roots: dict[str, Path], name: str, unit: str) -> None:
    root = roots[name]
    text = (root / unit).read_text()
    # Examples in it are valid too.
    text = text.replace("\n#LoadCredentialEncrypted=", "\nLoadCredentialEncrypted=")
    assert ("\nLoadCredentialEncrypted=" in text) == (unit != BOOT_UNIT)
    # The test machine has the targets, and the package's program in another folder.
    copy = root.parent / Path(unit).name.replace("@", "@north")
    copy.write_text(text.replace("/usr/bin/braid", str(root / "usr/bin/braid")))
    said = run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", copy], check=False)
    assert (said.status, [line for line in said.text.splitlines() if "braid" in line]) == (0, []), said.text


def test_the_daemon_has_no_mount_namespace_of_its_own(unpacked: Path) -> None:
    text = (unpacked / UNIT).read_text()
    # A mount namespace of its own would remove the datapath when the service stops.
    for option in ("ProtectSystem", "ProtectHome", "PrivateTmp", "ProtectKernelModules", "RuntimeDirectory"):
        assert f"\n{option}=" not in text


def test_symbols_are_apart_and_found_by_the_number_of_the_build(unpacked: Path, roots: dict[str, Path]) -> None:
    def sections(file: Path) -> str:
        return run(["readelf", "--wide", "--sections", file]).stdout

    def build_id(file: Path) -> str:
        found = re.search(r"Build ID: (\w+)", run(["readelf", "--notes", file]).stdout)
        assert found is not None
        return found[1]

    shipped = unpacked / "usr/bin/braid"
    assert ".debug_line" not in sections(shipped)
    assert ".symtab" not in sections(shipped)
    number = build_id(shipped)
    symbols = roots["braid-dbgsym"] / f"usr/lib/debug/.build-id/{number[:2]}/{number[2:]}.debug"
    assert ".debug_line" in sections(symbols)
    assert build_id(symbols) == number


def test_the_controllers_package_has_what_it_needs_and_nothing_of_the_programs(
    packages: dict[str, Path], roots: dict[str, Path]
) -> None:
    root = roots["braid-sdn"]
    files = files_in(root)
    wanted = {
        "usr/bin/braid-sdn",
        SDN_UNIT,
        "etc/braid/fabric.toml",
        "usr/share/man/man1/braid-sdn.1.gz",
        "usr/share/doc/braid-sdn/copyright",
        "usr/share/doc/braid-sdn/changelog.gz",
        "usr/share/doc/braid-sdn/fabric.md",
        "usr/share/doc/braid-sdn/fabric-core.md",
        "usr/share/doc/braid-sdn/web.md",
    }
    sources = {f"usr/share/braid-sdn/{file.relative_to(repository() / 'python')}" for file in _sources("braid_sdn")}
    assert {
        f"usr/share/braid-sdn/braid_sdn/{name}"
        for name in ("web/shared/dom.js", "fabric/page/main.js", "fabric/api/openapi.json")
    } <= sources
    assert {file for file in files if not file.startswith("DEBIAN/")} == wanted | sources
    # Two packages that contain the same file cannot be installed together.
    shared = {file for file in files & files_in(roots["braid"]) if not file.startswith("DEBIAN/")}
    assert shared == set()
    said = run(["dpkg-deb", "--field", packages["braid-sdn"], "Architecture"]).stdout
    assert said == "all\n"


def _sources(package: str) -> list[Path]:
    """Return the files of a package, links followed."""
    folder = repository() / "python" / package
    found = run(["find", "-L", folder, "-type", "f", "-not", "-path", "*/__pycache__/*"]).stdout
    return [Path(line) for line in found.splitlines()]


def test_the_controllers_example_is_valid_and_changes_nothing(roots: dict[str, Path], tmp_path: Path) -> None:
    example = roots["braid-sdn"] / "etc/braid/fabric.toml"
    shipped, nothing = read(example), read(None)
    assert (shipped.host, shipped.port, shipped.tls) == (nothing.host, nothing.port, nothing.tls)
    assert (shipped.settings.edges, shipped.settings.links) == ((), ())
    words = [line.removeprefix("#") for line in example.read_text().splitlines() if not line.startswith("# ")]
    whole = tmp_path / "whole.toml"
    whole.write_text("\n".join(words))
    (tmp_path / "fabric.key").write_bytes(b"0123456789abcdef")
    assert [edge.name for edge in read(whole).settings.edges] == ["beijing"]


def test_the_controllers_page_is_about_every_command(roots: dict[str, Path]) -> None:
    page = gzip.decompress((roots["braid-sdn"] / "usr/share/man/man1/braid-sdn.1.gz").read_bytes()).decode()
    for command in ("run", "status", "paths", "explain", "events", "svg", "web token"):
        assert f".SS braid sdn fabric {command}\n" in page
    assert r"\fB\-\-listen\fR" in page
