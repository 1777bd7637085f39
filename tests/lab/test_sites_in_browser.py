"""Web sites of the corpus in a real Chromium (`make page-test`; needs `tools/setup bench`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from braid_lab.experiment import all_experiments, execute
from braid_lab.net.topology import UplinkSpec, network
from braid_lab.pages import corpus
from braid_lab.pages.loaders import loader
from braid_lab.pages.sites import PROTOCOLS, served


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_object_is_loaded_again_each_time_and_both_paints_are_seen(protocol: str) -> None:
    sites = corpus.spread(corpus.generate(1), 3)
    with (
        network([UplinkSpec("line", families=frozenset({4}))]) as net,
        served(net, sites, protocol) as serving,
        loader("browser", net.host, serving, protocol) as load,
    ):
        for site in sites:
            document = site.objects[0]
            file = serving.root / document.host / "index.html"
            for _ in range(2):
                page = load(site)
                # Fetches may end after the load event.
                late = sum(each.size for each in site.objects if each.kind == "fetch")
                assert site.size - late - document.size <= page.bytes <= 1.02 * site.size
                assert page.bytes > file.stat().st_size
                assert page.fcp_s is not None
                assert page.lcp_s is not None
                assert 0 < page.fcp_s <= page.lcp_s < 10
                assert 0 < page.seconds < 10


def test_a_clip_plays_beside_a_page(tmp_path: Path) -> None:
    done = execute(all_experiments()["pages/video"], form="smoke", seed=1, out=tmp_path)
    assert done.failures == []
    figures = {each.name: each.value for each in done.figures}
    assert figures["video_mbit_reference"] > 0
    assert figures["stalls_reference"] == 0
