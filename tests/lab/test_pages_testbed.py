"""Loads of pages that can be compared with one another."""

from __future__ import annotations

import contextlib

from braid_lab.api import get
from braid_lab.experiments.pages import video
from braid_lab.experiments.pages.testbed import MBIT, complete, reductions, two_lines
from braid_lab.experiments.pages.video import grouped
from braid_lab.pages.corpus import generate, spread
from braid_lab.pages.video import FULL_SECONDS, QUALITIES


def loads(turn: int, site: str, *, single: float | None, wrr: float | None) -> list[dict[str, object]]:
    """Return the rows of a site in a turn; a page without a time has failed."""
    ways = {"single": single, "wrr": wrr}
    rows: list[dict[str, object]] = []
    for way, seconds in ways.items():
        times = {"error": "it did not arrive"} if seconds is None else {"seconds": seconds}
        rows.append({"turn": turn, "site": site, "way": way, **times})
    return rows


def test_a_page_that_fails_by_one_way_is_left_out_by_all_in_that_turn() -> None:
    rows = [
        *loads(0, "one", single=10.0, wrr=5.0),
        *loads(1, "one", single=None, wrr=1.0),
        *loads(0, "two", single=20.0, wrr=15.0),
        *loads(1, "two", single=20.0, wrr=5.0),
        *loads(0, "three", single=90.0, wrr=None),
    ]
    left = complete(rows)
    assert left == [row for row in rows if (row["turn"], row["site"]) in {(0, "one"), (0, "two"), (1, "two")}]
    assert reductions(left, "wrr") == (0.5, [0.5, 0.5])


def test_the_sites_of_a_short_video_are_one_group_and_a_shorter_clip_has_smaller_groups() -> None:
    sites = generate(1)
    assert len(grouped(spread(sites, video.QUICK.sites), video.QUICK_CLIP)) == 1
    groups = {seconds: grouped(sites, seconds) for seconds in (video.QUICK_CLIP, video.FULL_CLIP)}
    for seconds, found in groups.items():
        assert [site for group in found for site in group] == sites
        # Bytes that a group may have beside the clip on a single line.
        carried = (seconds - 2 * FULL_SECONDS) * (MBIT - QUALITIES[-1]) * 1e6 / 8
        assert all(len(group) == 1 or sum(site.size for site in group) < carried for group in found)
    assert len(groups[video.QUICK_CLIP]) > len(groups[video.FULL_CLIP])


def test_the_ways_differ_in_their_datapath_and_leave_none_for_the_next_one() -> None:
    kinds: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        # In the order in which the experiments build them: beside one another.
        for way in ("single", "wrr", "wrr_openflow", "fastest"):
            daemon = stack.enter_context(two_lines(way, 1)).daemon
            if daemon is not None:
                kinds[way] = (get(daemon.run_dir / "braid.sock", "/v1/config") or {})["datapath"]["kind"]
    assert kinds == {"wrr": "ebpf", "wrr_openflow": "openflow", "fastest": "ebpf"}
