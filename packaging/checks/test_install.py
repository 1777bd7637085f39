"""The packages on the Debians that they are for: they install, their programs run, and purging them leaves nothing.

`make package-test` builds them first.
"""

from __future__ import annotations

import json
import re

import pytest

from braid_lab.process import run
from braid_lab.product import repository
from checks.roots import Root

PACKAGES = repository() / "target" / "debian"
SUITES = ("bullseye", "bookworm", "trixie")
ARCHITECTURES = ("amd64", "arm64")

#: Where Python and os-ken are new enough for the controller; and what its tests need.
SDN_SUITES = ("bookworm", "trixie")
SDN_NEEDS = ("python3-cryptography", "python3-h11", "python3-os-ken")
SDN_TESTS_NEED = (
    *(*SDN_NEEDS, "openssl", "openvswitch-common"),
    *("python3-dpkt", "python3-hypothesis", "python3-networkx", "python3-pytest"),
)

#: Lists all files but those that a package manager notes things in.
LIST_FILES = r"find / -xdev \( -path /var/lib/dpkg -o -path /var/log -o -path /tmp \) -prune -o -print | sort"

#: As root of nothing, a program's answers still have to be sound.
COMMAND_LINE = r"""
braid --help > /tmp/help
grep -q '^  status ' /tmp/help
braid config check /etc/braid/braid.toml
braid config show --effective --config /etc/braid/braid.toml | grep -q '^policy = "fastest"'
code=0; braid status > /tmp/status 2>&1 || code=$?
test $code = 3
braid man /tmp/man
test -s /tmp/man/braid-hub-invite.1
braid completions bash > /tmp/completions
bash -n /tmp/completions
code=0; braid doctor > /tmp/doctor 2>&1 || code=$?
case $code in 0 | 1 | 4) ;; *) cat /tmp/doctor; exit 1 ;; esac
"""


@pytest.fixture(scope="module")
def version() -> str:
    """The version that the packages are of."""
    found = re.search(r'^version = "(.*)"', (repository() / "Cargo.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("suite", SUITES)
def test_it_installs_runs_and_is_purged_without_a_trace(suite: str, architecture: str, version: str) -> None:
    braid, symbols = (f"/packages/{name}_{version}_{architecture}.deb" for name in ("braid", "braid-dbgsym"))
    said = Root(suite, architecture).run(
        f"""
        {LIST_FILES} > /tmp/before
        dpkg --install {braid} {symbols} >&2
        braid --version | grep -x 'braid {version}' >&2
        {COMMAND_LINE}
        # Again, as an upgrade does it.
        dpkg --install {braid} >&2
        dpkg --purge braid-dbgsym braid >&2
        {LIST_FILES} > /tmp/after
        diff /tmp/before /tmp/after >&2
        echo =====
        hash -r
        command -v braid || echo gone
        """,
        packages=PACKAGES,
    )
    assert said.partition("=====\n")[2] == "gone\n", said


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_doctor_says_what_it_found_in_json_too(architecture: str, version: str) -> None:
    said = Root("bookworm", architecture).run(
        f"""
        dpkg --install /packages/braid_{version}_{architecture}.deb >&2
        echo =====
        # Diagnostics on standard error are none of the answer: an emulated processor's netlink causes some.
        braid doctor --json 2> /dev/null || true
        """,
        packages=PACKAGES,
    )
    findings = json.loads(said.partition("=====\n")[2])["findings"]
    assert {"kernel"} <= {finding["code"] for finding in findings}


@pytest.mark.parametrize("suite", SDN_SUITES)
def test_the_controller_installs_serves_and_is_purged_without_a_trace(suite: str, version: str) -> None:
    Root(suite, "amd64", SDN_NEEDS).run(
        f"""
        {LIST_FILES} > /tmp/before
        dpkg --install /packages/braid-sdn_{version}_all.deb /packages/braid_{version}_amd64.deb
        braid-sdn fabric run --config /etc/braid/fabric.toml --run-dir /tmp/run 2> /tmp/log &
        controller=$!
        tail --follow=name --retry --pid=$controller /tmp/log 2> /dev/null | grep -m 1 ^ready: ||
            {{ cat /tmp/log; exit 1; }}
        braid sdn fabric status --run-dir /tmp/run | grep '^SWITCH'
        # Not `%1`: this shell has no job control, so that names a process group that does not exist.
        kill $controller
        wait $controller
        # It has these once somebody drained a switch, and once the page was asked for.
        mkdir -p /var/lib/braid
        touch /var/lib/braid/fabric-policies.json /var/lib/braid/fabric-web-tokens.json
        dpkg --purge braid-sdn braid
        {LIST_FILES} > /tmp/after
        diff /tmp/before /tmp/after
        """,
        packages=PACKAGES,
    )


@pytest.mark.parametrize("suite", SDN_SUITES)
def test_the_controller_works_with_the_libraries_of_its_debian(suite: str, version: str) -> None:
    Root(suite, "amd64", SDN_TESTS_NEED).run(
        f"""
        dpkg --install /packages/braid-sdn_{version}_all.deb
        mkdir /tmp/tests /tmp/lab /tmp/fuzz
        cp -r /project/tests/sdn /tmp/tests
        cp -r /project/fuzz/corpus-sdn /tmp/fuzz
        # Numbers that have to be the same in Rust and in C.
        cd /project
        cp --parents crates/braid-daemon/src/datapath/openflow/messages.rs crates/braid-balance/bpf/constants.h /tmp
        # From the lab the tests import its networks alone, which are plain data.
        cp -r /project/python/braid_lab /tmp/lab
        cd /tmp/tests
        PYTHONPATH=/usr/share/braid-sdn:/tmp/lab python3 -m pytest -q -p no:cacheprovider sdn
        """,
        packages=PACKAGES,
        timeout=1800,
    )


def test_lintian_has_nothing_to_say() -> None:
    said = run(["lintian", "--allow-root", *sorted(PACKAGES.glob("*.deb"))], timeout=600, check=False)
    assert (said.status, said.text.strip()) == (0, "")


def test_packages_want_no_newer_glibc_than_debian_11_has(version: str) -> None:
    for architecture in ARCHITECTURES:
        package = PACKAGES / f"braid_{version}_{architecture}.deb"
        depends = run(["dpkg-deb", "--field", package, "Depends"]).stdout
        wanted = re.search(r"libc6 \(>= 2\.(\d+)\)", depends)
        assert depends == "" or (wanted is not None and int(wanted[1]) <= 31), depends


def test_every_package_is_there(version: str) -> None:
    names = {file.name for file in PACKAGES.glob("*.deb")}
    wanted = {f"{name}_{version}_{each}.deb" for name in ("braid", "braid-dbgsym") for each in ARCHITECTURES}
    assert {*wanted, f"braid-sdn_{version}_all.deb"} <= names
