"""Debian's mirror is found in every format of a machine's sources."""

from __future__ import annotations

import pytest

from braid_lab.kernels.packages import mirrors

DEB822 = """\
Types: deb
# a remark
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://vendor.example/linux/debian
Suites: bookworm
Signed-By: /usr/share/keyrings/vendor.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian

Types: deb-src
URIs: http://source.example/debian

Types: deb
URIs: mirror+file:///etc/apt/mirrors/debian.list http://second.example/debian/
"""

ONE_LINE = """\
# deb http://off.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib
deb-src http://source.example/debian bookworm main
deb http://mirror.example/debian-security bookworm-security main
deb [arch=amd64 signed-by=/etc/apt/keyrings/vendor.asc] https://vendor.example/linux/debian bookworm stable
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://dated.example/archive/debian/20260101T000000Z/ sid main
"""  # noqa: E501


@pytest.mark.parametrize(
    ("sources", "deb822", "found"),
    [
        (
            DEB822,
            True,
            [
                "http://mirror.example/debian",
                "mirror+file:///etc/apt/mirrors/debian.list",
                "http://second.example/debian/",
            ],
        ),
        (ONE_LINE, False, ["http://mirror.example/debian", "http://dated.example/archive/debian/20260101T000000Z/"]),
        ("", True, []),
    ],
)
def test_the_mirrors_of_debian_are_told_from_others(sources: str, deb822: bool, found: list[str]) -> None:
    assert mirrors(sources, deb822=deb822) == found
