"""Experiments with web sites go on where they were interrupted: no page that was measured is loaded again."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import dpkt  # type: ignore[import-untyped]
import pytest

from braid_lab.experiment import Run, all_experiments, execute
from braid_lab.experiments.balance.dynamic import CASES, Loads
from braid_lab.experiments.pages import dynamic, flows, loader_comparison
from braid_lab.packets.codec import Flag, Packet, Tcp, encode
from braid_lab.pages.corpus import Site
from braid_lab.pages.loaders import PageLoad


class Interrupted(BaseException):
    """A user's Ctrl-C."""


@dataclass
class Loader:
    """A loader that measures nothing, counts what it loads, and is interrupted once."""

    #: Loads until the interruption.
    left: int
    loaded: Counter[str] = field(default_factory=Counter)

    def load(self, site: Site) -> PageLoad:
        """Count a load."""
        if self.left == 0:
            self.left = -1
            raise Interrupted
        self.left -= 1
        self.loaded[site.name] += 1
        return PageLoad(2.0, None, None, site.size)


@contextlib.contextmanager
def nothing(*_: Any, **__: Any) -> Iterator[Any]:
    yield SimpleNamespace(host=None, net=SimpleNamespace(host=None), scratch=Path())


@contextlib.contextmanager
def captured(_place: object, _device: str, file: Path) -> Iterator[None]:
    """Leave a capture of one connection, whose beginning is all that it has."""
    with file.open("wb") as raw:
        opening = encode(Packet("192.0.2.7", "198.51.100.1", Tcp(5001, 443, Flag.SYN, seq=1)))
        dpkt.pcap.Writer(raw, linktype=101).writepkt(opening, ts=100.0)
    yield


def replace(monkeypatch: pytest.MonkeyPatch, module: ModuleType, mine: Loader, folder: Path) -> None:
    """Replace networks, servers and loaders of an experiment's module."""

    @contextlib.contextmanager
    def built(*_: Any, **__: Any) -> Iterator[Any]:
        yield SimpleNamespace(host=None, net=SimpleNamespace(host=None), scratch=folder)

    @contextlib.contextmanager
    def loader(*_: Any, **__: Any) -> Iterator[Callable[[Site], PageLoad]]:
        yield mine.load

    for name, fake in {"network": built, "two_lines": built, "served": built, "loader": loader}.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, fake)
    monkeypatch.setattr("braid_lab.pages.loaders.require", lambda _: None)


def interrupt(name: str, out: Path, **options: Any) -> Run:
    """Run an experiment until it is interrupted, and again until it ends."""
    with pytest.raises(Interrupted):
        execute(all_experiments()[name], form="quick", seed=1, out=out, **options)
    book = out / name / "journal.jsonl"
    assert book.read_text().count("\n") > 1
    done = execute(all_experiments()[name], form="quick", seed=1, out=out, **options)
    assert done.failures == []
    assert not book.exists()
    return done


def test_flows_of_sites_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Loader(3)
    replace(monkeypatch, flows, mine, tmp_path)
    monkeypatch.setattr(flows, "captured", captured)
    done = interrupt("pages/flows", tmp_path)
    assert set(mine.loaded.values()) == {1}
    assert {each.name: each.value for each in done.figures}["sites"] == len(mine.loaded) == flows.QUICK.sites


def test_a_walk_goes_on_with_the_next_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Loader(2)
    replace(monkeypatch, dynamic, mine, tmp_path)
    monkeypatch.setattr(dynamic, "using", nothing)
    monkeypatch.setattr(dynamic, "play", lambda _net, _walk, _case, load: Loads([load(0)]))
    done = interrupt("pages/dynamic", tmp_path)
    assert list(mine.loaded.values()) == [len(CASES)] * dynamic.QUICK.sites
    figures = {each.name: each.value for each in done.figures}
    assert [figures[f"page_load_s_{case}"] for case in CASES] == [2.0] * len(CASES)


def test_the_comparison_of_loaders_goes_on_with_the_next_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One after another, so that it is known how many pages have been loaded when one is interrupted.
    monkeypatch.setattr(loader_comparison, "run_concurrently", lambda work: [each() for each in work])
    of_a_site = len(loader_comparison.WAYS) * 2
    mine = Loader(of_a_site)
    replace(monkeypatch, loader_comparison, mine, tmp_path)
    done = interrupt("pages/loaders", tmp_path, cases=["http/1.1"])
    assert list(mine.loaded.values()) == [of_a_site] * loader_comparison.QUICK.sites
    assert {each.name: each.value for each in done.figures}["fast_vs_browser_http11"] == 1.0
