"""The fabric's page in a real Chromium, on a real controller with Open vSwitch (`make page-test`)."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from braid_lab.fabric.controller import Fabric, configuration, controller
from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.ovs import OvsNetwork, ovs_network
from braid_lab.fabric.shapes import east_asia, two_paths
from braid_lab.page import LISTEN, WEB
from braid_lab.process import Process, wait_until
from braid_lab.programs.album import SENTENCE, Album
from braid_lab.programs.devtools import Tab, browser

URL = f"http://{LISTEN}/"
SHAPE = two_paths(mbit=1000, delay_ms=0)
#: Places of the switches in the drawing.
PLACES = (
    "[...document.querySelectorAll('#drawing .nodes rect')].map((box) => [box.x.baseVal.value, box.y.baseVal.value])"
)
ALL_WELL = f"{SENTENCE} === 'The fabric is all right.'"


@dataclass
class Shown:
    """A page of a controller that somebody has open."""

    net: OvsNetwork
    fabric: Fabric
    tab: Tab

    def log_in(self, role: str = "operator") -> None:
        """Log in as a person does."""
        self.tab.open(URL)
        self.tab.type("#token", self.fabric.json("web", "token", "--role", role)["token"], enter=True)
        self.tab.wait("document.querySelectorAll('#switches-table tbody tr').length > 0", timeout=60)


@contextlib.contextmanager
def shown_with(config: str) -> Iterator[Shown]:
    with (
        ovs_network(SHAPE) as net,
        controller(net.place, net.folder, config + WEB) as fabric,
        browser(net.place.name) as tab,
    ):
        yield Shown(net, fabric, tab)


@pytest.fixture
def shown() -> Iterator[Shown]:
    """Four switches in a ring, an edge at two of them, and a browser beside their controller."""
    with shown_with(configuration(SHAPE)) as made:
        yield made


def text(tab: Tab, selector: str) -> str:
    found: str = tab.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")
    return found


def test_a_link_that_goes_down_is_shown_with_its_reason(shown: Shown) -> None:
    tab = shown.tab
    tab.open(URL)
    assert tab.evaluate("document.title") == "Log in - Braid"
    assert "braid sdn fabric web token" in text(tab, "form + p")
    shown.log_in()
    tab.wait(ALL_WELL, timeout=60)
    assert text(tab, "#reasons") == "4 switches and 4 links work. 2 pairs of edges take 4 paths."
    assert tab.evaluate("document.querySelectorAll('#links-table tbody tr').length") == 4
    assert tab.evaluate("document.querySelectorAll('#drawing .nodes > g').length") == 4
    before = tab.evaluate(PLACES)
    tab.wait("document.querySelectorAll('#paths-table tbody tr').length === 2")
    # Notes when the sentence changes, by the clock that the controller's events have too, and all that is said aloud.
    tab.evaluate(
        "new MutationObserver(() => { window.changed ??= Date.now() })"
        ".observe(document.querySelector('#sentence'), {childList: true, subtree: true, characterData: true});"
        "window.said = [];"
        "new MutationObserver(() => window.said.push(document.querySelector('#news').textContent))"
        ".observe(document.querySelector('#news'), {childList: true, subtree: true, characterData: true}); 0"
    )
    shown.net.place.ip("link set A-P down")
    try:
        sentence = tab.wait(f"{SENTENCE}.startsWith('The link A – P has been down since ') && {SENTENCE}")
        assert re.fullmatch(r"The link A – P has been down since \d\d:\d\d\.", sentence)
        assert re.match(r"A – P: port (A:A-P|P:P-A) is down\.", text(tab, "#reasons"))
        tab.wait("document.querySelectorAll('#drawing .links .lost').length === 1")
        # Nothing else has moved.
        assert tab.evaluate(PLACES) == before
        rows = "[...document.querySelectorAll('#links-table tr')].map((row) => row.textContent)"
        tab.wait(f"{rows}.some((row) => /down since .*: port .* is down/.test(row))")
        # It is said aloud, and listed with what it means for the paths.
        tab.wait("/A:A-P → P:P-A, is down, port/.test(window.said.join())")
        tab.wait(
            "/A → Q → B – A>P>B is left: a link of it is lost/.test(document.querySelector('.events').textContent)"
        )
        tab.wait("document.querySelectorAll('#paths-table tbody tr').length === 1")
        events = shown.fabric.json("events")["events"]
        (lost,) = (each for each in events if each["event"] == "link-lost" and each["fields"]["source"] == "A:A-P")
        assert tab.evaluate("window.changed") - lost["unix_ms"] < 1000
    finally:
        shown.net.place.ip("link set A-P up")
    tab.wait(ALL_WELL, timeout=60)
    assert tab.evaluate(PLACES) == before
    assert [each for each in tab.complaints if "401" not in each] == []
    assert {url[: len(URL)] for url in tab.requested() if not url.startswith("about:")} == {URL}


def test_a_way_is_explained_and_an_operator_forgets_a_host(shown: Shown) -> None:
    tab = shown.tab
    ha, hb = shown.net.stations["ha"], shown.net.stations["hb"]
    shown.log_in()
    tab.wait(ALL_WELL, timeout=60)
    wait_until(
        lambda: ha.place.run(["ping", "-c", "1", "-W", "1", hb.address], check=False).status == 0,
        what="a ping",
        timeout=30,
    )
    tab.wait("document.querySelectorAll('#hosts-table tbody tr').length === 2")
    tab.type("#source", ha.address)
    tab.type("#target", hb.address, enter=True)
    tab.wait("document.querySelectorAll('#story li').length > 4")
    assert f"{hb.address} is at B:hb (host {hb.mac})" in text(tab, "#story")
    tab.wait("document.querySelectorAll('#drawing .ribbon').length === 4")
    tab.type("#find", ha.mac)
    tab.wait("document.querySelectorAll('#hosts-table tbody tr').length === 1")
    tab.evaluate("window.confirm = () => true; 0")
    tab.click(f"#hosts-table [aria-label='Forget {ha.mac}']")
    tab.wait(f"document.querySelector('#outcome').textContent === '{ha.mac} at A:ha is forgotten.'")
    tab.click("#logout")
    tab.wait("document.title === 'Log in - Braid'")
    assert [each for each in tab.complaints if "401" not in each] == []


def test_a_viewer_sees_no_buttons_and_the_keyboard_is_enough(shown: Shown) -> None:
    tab = shown.tab
    shown.log_in("viewer")
    tab.wait(ALL_WELL, timeout=60)
    shown.net.stations["ha"].place.run(["ping", "-c", "1", "-W", "1", shown.net.stations["hb"].address], check=False)
    tab.wait("document.querySelectorAll('#hosts-table tbody tr').length > 0")
    assert tab.evaluate("document.querySelector('#hosts-table button')") is None
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    reached = tab.tab_through(12)
    assert {"logout", "A", "pair", "source", "target", "find"} <= reached, reached


def test_hostile_names_are_shown_not_run() -> None:
    hostile = "<img src=x onerror='window.taken = true'>"
    config = configuration(SHAPE, capacities=False).replace('"A"', json.dumps(hostile))
    with shown_with(config.replace('name = "ha"', 'name = "<b>ha"')) as shown:
        tab = shown.tab
        shown.log_in("viewer")
        tab.wait(ALL_WELL, timeout=60)
        for selector in ("#drawing", "#links-table", "#switches-table", "#paths-table", ".events"):
            tab.wait(f"document.querySelector('{selector}').textContent.includes({json.dumps(hostile)})")
        assert "<b>ha" in text(tab, "#pair")
        assert tab.evaluate("document.querySelectorAll('main b, main img').length") == 0
        assert tab.evaluate("window.taken") is None
        # Even a script that came into the page would not be run.
        tab.add_script("window.taken = 1")
        assert tab.evaluate("window.taken") is None
        assert any("Content Security Policy" in each for each in tab.complaints)


def test_a_controller_that_is_gone_is_told_and_the_page_goes_on_with_the_next(shown: Shown) -> None:
    tab = shown.tab
    shown.log_in()
    tab.wait(ALL_WELL, timeout=60)
    shown.fabric.stop()
    tab.wait("!document.querySelector('#stale').hidden", timeout=8)
    shown.fabric.start()
    tab.wait(f"document.querySelector('#stale').hidden && {ALL_WELL}", timeout=60)


def snapshot(**more: Any) -> dict[str, Any]:
    whole = {"unix_ms": 0, "planned": True, "switches": [{"name": "A"}, {"name": "B"}], "health": []}
    empty: dict[str, Any] = {"links": [], "lost_links": [], "lost_switches": [], "pairs": [], "unserved": []}
    return {**whole, **empty, **more}


def link(one: str, other: str) -> dict[str, Any]:
    ends = {"source": f"{one}:{other}", "target": f"{other}:{one}", "source_switch": one, "target_switch": other}
    return {**ends, "capacity_bit_s": 1, "used_bit_s": 0, "latency_ms": 1, "stale": False}


def lost(one: str, other: str) -> dict[str, Any]:
    return {**link(one, other), "lost_ms": 0, "why": f"reason of {one}"}


BOTH = [link("A", "B"), link("B", "A")]
#: Snapshots, and what the page then says: its tone, the beginning of the sentence, and what is behind it.
SENTENCES = [
    (snapshot(links=BOTH), "good", "The fabric is all right.", ["2 switches and 1 link work."]),
    (
        snapshot(health=[{"code": "loop"}]),
        "warn",
        "The fabric works, but something needs attention.",
        ["2 switches and 0 links work."],
    ),
    (snapshot(planned=False), "wait", "The controller is finding the network.", []),
    (snapshot(switches=[]), "bad", "No switch is connected.", ["Switches connect by ovs-vsctl set-controller."]),
    (
        snapshot(lost_links=[lost("A", "B"), lost("B", "A")], unserved=[{"source": "a", "target": "b"}]),
        "bad",
        "The link A – B has been down since ",
        [
            "A – B: reason of B.",
            "2 switches and 0 links work. 1 pair of edges has no paths of its own.",
        ],
    ),
    # One direction is back, and the other not yet.
    (snapshot(links=BOTH[:1], lost_links=[lost("B", "A")]), "bad", "The link A – B has been down since ", None),
    (
        snapshot(lost_switches=[{"name": "C", "lost_ms": 0, "why": "it left"}]),
        "bad",
        "The switch C has been away since ",
        ["C: it left.", "2 switches and 0 links work."],
    ),
    (
        snapshot(lost_switches=[{"name": "C", "lost_ms": 0, "why": "it left"}], lost_links=[lost("A", "B")]),
        "bad",
        "1 switch and 1 link are away.",
        ["C: it left.", "A – B: reason of A.", "2 switches and 0 links work."],
    ),
]


def test_the_sentence_on_top_and_the_places_of_switches(shown: Shown) -> None:
    shown.log_in("viewer")
    for state, tone, sentence, reasons in SENTENCES:
        said = shown.tab.evaluate(f"import('/verdict.js').then(({{verdict}}) => verdict({json.dumps(state)}))")
        assert said["state"] == tone
        assert said["sentence"].startswith(sentence)
        assert reasons is None or said["reasons"] == reasons

    def arranged(names: str, links: list[str], ends: str = "", before: str = "new Map()") -> dict[str, list[float]]:
        words = [list(names), [list(each) for each in links], list(ends)]
        call = f"arrange({', '.join(json.dumps(word) for word in words)}, {before})"
        found: dict[str, list[float]] = shown.tab.evaluate(
            f"import('/layout.js').then(({{arrange}}) => Object.fromEntries({call}))"
        )
        return found

    ring = ["AP", "PB", "AQ", "QB"]
    placed = arranged("ABPQ", ring, "AB")
    # The ends are left and right, and no two links cross.
    assert placed["A"][0] < min(placed["P"][0], placed["Q"][0]) < max(placed["P"][0], placed["Q"][0]) < placed["B"][0]
    assert placed["P"][1] * placed["Q"][1] < 0
    assert arranged("QPBA", ring[::-1], "AB") == placed
    grown = arranged("ABPQR", [*ring, "QR"], "AB", f"new Map(Object.entries({json.dumps(placed)}))")
    assert {name: grown[name] for name in placed} == placed
    near = {name: abs(complex(*grown["R"]) - complex(*at)) for name, at in placed.items()}
    assert min(near, key=near.__getitem__) == "Q"
    assert arranged("", []) == {}
    assert len(arranged("ABC", [])) == 3


@contextlib.contextmanager
def busy(network: EdgedNetwork) -> Iterator[None]:
    """Load some paths for the length of a block."""
    stations = network.net.stations
    with contextlib.ExitStack() as stack:
        for source, target, rate in (("bej", "haw", "12M"), ("tok", "syd", "9M")):
            log = network.net.folder / f"load-{source}"
            server = ["iperf3", "-s", "-1"]
            stack.enter_context(Process(server, log=Path(f"{log}-server"), namespace=stations[target].place.name))
            listening = stations[target].place
            wait_until(lambda listening=listening: "5201" in listening.run(["ss", "-ltn"]).stdout, what="iperf3")  # type: ignore[misc]
            words = ["iperf3", "-c", stations[target].address, "-t", "400", "-b", rate]
            stack.enter_context(Process(words, log=log, namespace=stations[source].place.name))
        yield


def test_screenshots_have_no_accessibility_violation(pictures: Path) -> None:
    with edged_network(east_asia(), more=WEB) as network, browser(network.net.place.name) as tab:
        network.settle("bej", "haw", 2)
        network.settle("tok", "syd", 2)
        album = Album(tab, pictures)
        shown = Shown(network.net, network.fabric, tab)
        shown.log_in()
        tab.wait(ALL_WELL, timeout=60)
        with busy(network):
            option = "[...document.querySelectorAll('#pair option')].find((each) => each.value === 'bej → haw')"
            tab.evaluate(f"document.querySelector('#pair').value = {option}.value; 0")
            tab.evaluate("document.querySelector('#pair').dispatchEvent(new Event('change')); 0")
            # Charts need some seconds of life.
            seconds = float(os.environ.get("BRAID_SCREENSHOT_SECONDS", "3"))
            tab.wait(
                f"(window.since ??= performance.now()) + {seconds * 1000} < performance.now()", timeout=seconds + 10
            )
            tab.type("#source", "bej")
            tab.type("#target", "haw", enter=True)
            tab.wait("document.querySelectorAll('#story li').length > 3")
            album.photograph("fabric")
            network.net.place.ip("link set SHA-TOK down")
            try:
                tab.wait(f"{SENTENCE}.startsWith('The link SHA – TOK has been down')")
                tab.wait("document.querySelectorAll('#paths-table tbody tr').length === 1", timeout=20)
                album.photograph("fabric-link-down")
            finally:
                network.net.place.ip("link set SHA-TOK up")
    assert album.broken == {}
