"""Pure parts of booting a kernel: the content of its initial root, and the order of modules."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from braid_lab.experiments.kernels.matrix import CHECKS
from braid_lab.kernels.initramfs import dependencies, initramfs, load_order
from braid_lab.kernels.scenario import CHECKS as SCENARIO
from braid_lab.process import LabError, run

NEEDS = {
    "kernel/net/9p/9pnet_virtio.ko.xz": ["kernel/net/9p/9pnet.ko.xz"],
    "kernel/net/9p/9pnet.ko.xz": [],
    "kernel/fs/9p/9p.ko": ["kernel/net/9p/9pnet.ko.xz", "kernel/fs/netfs/netfs.ko"],
    "kernel/fs/netfs/netfs.ko": [],
    "kernel/drivers/other-one.ko": [],
}


def modules(folder: Path) -> Path:
    made = folder / "lib" / "modules" / "1.2.3"
    for file in NEEDS:
        path = made / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(file.encode()) if file.endswith(".xz") else file.encode())
    listing = "".join(f"{file}: {' '.join(needed)}\n" for file, needed in NEEDS.items())
    (made / "modules.dep").write_text(listing)
    return made


def test_modules_are_loaded_after_those_they_need_and_once() -> None:
    order = load_order(NEEDS, ["9pnet_virtio", "9p", "not_there", "9p"])
    assert order == [
        "kernel/net/9p/9pnet.ko.xz",
        "kernel/net/9p/9pnet_virtio.ko.xz",
        "kernel/fs/netfs/netfs.ko",
        "kernel/fs/9p/9p.ko",
    ]


def test_a_dash_in_a_module_s_file_is_an_underscore_in_its_name() -> None:
    assert load_order(NEEDS, ["other_one"]) == ["kernel/drivers/other-one.ko"]


def test_what_depmod_has_listed_is_read(tmp_path: Path) -> None:
    assert dependencies(modules(tmp_path)) == NEEDS


def test_cpio_unpacks_the_archive(tmp_path: Path) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"a program of odd length")
    archive = tmp_path / "initrd"
    archive.write_bytes(initramfs(modules(tmp_path), ["9p"], busybox, "exec true\n"))
    target = tmp_path / "unpacked"
    target.mkdir()
    words = ["python3", "-c", UNPACK, str(archive), str(target)]
    listed = run(words).stdout.split()
    assert {"init", "bin/busybox", "modules/0.ko", "modules/2.ko", "root", "proc"} <= set(listed)
    assert (target / "bin/busybox").read_bytes() == b"a program of odd length"
    # An .xz module is unpacked: the module loader in the initial root does not support it.
    assert (target / "modules/0.ko").read_bytes() == b"kernel/fs/netfs/netfs.ko"
    assert (target / "modules/1.ko").read_bytes() == b"kernel/net/9p/9pnet.ko.xz"
    script = (target / "init").read_text().splitlines()
    assert script[0] == "#!/bin/busybox sh"
    assert script[-1] == "exec true"
    assert script.index("$b insmod /modules/0.ko") < script.index("$b insmod /modules/2.ko")


def test_a_module_in_another_form_is_refused_by_name(tmp_path: Path) -> None:
    folder = modules(tmp_path)
    (folder / "modules.dep").write_text("kernel/odd.ko.zst:\n")
    (folder / "kernel/odd.ko.zst").write_bytes(b"")
    with pytest.raises(LabError, match=r"odd\.ko\.zst"):
        initramfs(folder, ["odd"], folder / "kernel/odd.ko.zst", "")


def test_the_matrix_has_a_row_for_every_check_of_the_scenario() -> None:
    assert sorted(CHECKS) == sorted(SCENARIO)


#: A reader of the format written from its description (cpio(5), "New ASCII Format"), independent of the writer.
UNPACK = """
import os, sys
data, target = open(sys.argv[1], "rb").read(), sys.argv[2]
at = 0
while True:
    assert data[at:at + 6] == b"070701" and at % 4 == 0
    field = [int(data[at + 6 + 8 * i:at + 14 + 8 * i], 16) for i in range(13)]
    name = data[at + 110:at + 110 + field[11] - 1].decode()
    at += 110 + field[11]; at += -at % 4
    content = data[at:at + field[6]]
    at += field[6]; at += -at % 4
    if name == "TRAILER!!!":
        break
    print(name)
    if field[1] & 0o40000:
        os.makedirs(os.path.join(target, name), exist_ok=True)
    else:
        open(os.path.join(target, name), "wb").write(content)
"""
