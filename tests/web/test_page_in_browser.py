"""The page in a real Chromium, on a real daemon (`make page-test`, `make screenshots`; needs `tools/setup bench`)."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from braid_lab.net.faults import unplugged
from braid_lab.net.links import LinkSpec
from braid_lab.net.remote_host import remote_host
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.observe import states
from braid_lab.page import LISTEN, WEB, token
from braid_lab.process import Process, wait_until
from braid_lab.product import Braid
from braid_lab.programs.album import SENTENCE, Album, violations
from braid_lab.programs.devtools import Tab, browser
from braid_lab.remote_hub import running_hub
from conftest import LINES, MakeNetwork, StartBraid, StartHub, configured

URL = f"http://{LISTEN}/"
ALL_WELL = f"{SENTENCE} === 'The internet is all right.'"


@dataclass
class Shown:
    """A page that somebody has open."""

    net: Topology
    daemon: Braid
    tab: Tab

    def log_in(self, role: str = "operator") -> None:
        """Log in as a person does."""
        self.tab.open(URL)
        self.tab.type("#token", token(self.daemon, role), enter=True)
        self.tab.wait("document.querySelectorAll('.card').length > 0")


@pytest.fixture
def shown(make_network: MakeNetwork, start_braid: StartBraid) -> Iterator[Shown]:
    """A browser on a host with two lines."""
    net = make_network(*LINES)
    daemon = start_braid(net, "--config", configured(net, WEB))
    with browser(net.host.name) as tab:
        yield Shown(net, daemon, tab)


def test_an_unplugged_line_is_shown_within_a_second_with_its_reason(shown: Shown) -> None:
    tab = shown.tab
    tab.open(URL)
    assert tab.evaluate("document.title") == "Log in - Braid"
    assert tab.evaluate("document.querySelector('.card')") is None
    tab.type("#token", "wrong", enter=True)
    tab.wait("document.querySelector('[role=alert]')?.textContent === 'That is not a valid token.'")
    shown.log_in()
    tab.wait(ALL_WELL)
    # Notes when the sentence changes, by the clock that the daemon's events have too.
    tab.evaluate(
        "new MutationObserver(() => { window.changed ??= Date.now() })"
        ".observe(document.querySelector('#sentence'), {childList: true, subtree: true, characterData: true}); 0"
    )
    with unplugged(shown.net.uplinks["lte"]):
        sentence = tab.wait(f"{SENTENCE}.startsWith('lte has been down since ') && {SENTENCE}")
        assert sentence.endswith(".")
        assert "carrier" in tab.evaluate("document.querySelector('#reasons').textContent")
        assert "New flows take dsl." in tab.evaluate("document.querySelector('#reasons').textContent")
        assert tab.evaluate("document.querySelector('.card[aria-label=lte] .badge .state').textContent") == "Down"
        # It is said aloud, and listed.
        tab.wait("document.querySelector('#news').textContent.includes('carrier')")
        told = [
            each for each in shown.daemon.json("events", "--uplink", "lte")["events"] if each["kind"] == "uplink-gone"
        ]
        changed = tab.evaluate("window.changed")
        assert changed - told[-1]["unix_ms"] < 1000
    tab.wait(ALL_WELL, timeout=20)
    assert "usable again" in tab.evaluate("document.querySelector('.events').textContent")
    assert [each for each in tab.complaints if "401" not in each] == []
    assert {url[: len(URL)] for url in tab.requested() if not url.startswith("about:")} == {URL}


def test_an_operator_sets_an_uplink_aside_and_switches_a_rule_off(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    net = make_network(*LINES)
    rule = '[[rule]]\nname = "streaming"\nport = 4711\nuse = "lte"\n'
    daemon = start_braid(net, "--config", configured(net, WEB + rule))
    with browser(net.host.name) as tab:
        Shown(net, daemon, tab).log_in()
        tab.wait(ALL_WELL, timeout=20)
        card = "document.querySelector('.card[aria-label=lte]')"
        tab.click("[aria-label='Pause lte']")
        tab.wait(f"{card}.querySelector('.state').textContent === 'Paused'")
        tab.wait("document.querySelector('#reasons').textContent === 'dsl works. lte is paused.'")
        assert tab.evaluate(SENTENCE) == "The internet is all right."
        why = tab.evaluate(f"{card}.querySelector('.why').textContent")
        assert why.startswith("Paused on this page at ")
        assert why.endswith(", until somebody resumes it.")
        tab.wait("document.querySelector('.events').textContent.includes('paused on the page, until it is resumed')")
        # The last one is asked about, and no is no.
        tab.evaluate("window.asked = []; window.confirm = (text) => { asked.push(text); return false }; 0")
        tab.click("[aria-label='Pause dsl']")
        tab.wait("window.asked.length === 1")
        assert "dsl is the only uplink that works" in tab.evaluate("window.asked[0]")
        tab.wait("document.querySelector('.card[aria-label=dsl] .pause p').textContent.includes('It did not work')")
        assert states(daemon) == {"dsl": "up", "lte": "paused"}
        tab.click("[aria-label='Pause streaming']")
        tab.wait("document.querySelector('#rules-table').textContent.includes('Paused on this page')")
        assert violations(tab) == []
        daemon.call("rule", "resume", "streaming")
        tab.wait("!document.querySelector('#rules-table').textContent.includes('Paused')")
        tab.click("[aria-label='Resume lte']")
        tab.wait(f"{card}.querySelector('.state').textContent === 'Up'")
        assert [each for each in tab.complaints if "401" not in each and "409" not in each] == []
    with browser(net.host.name) as tab:
        Shown(net, daemon, tab).log_in("viewer")
        tab.wait("!document.querySelector('#rules').hidden")
        assert tab.evaluate("document.querySelectorAll('.pause, #rules-table button').length") == 0


#: Uplinks by their states, health problems, and what the page then says: its tone, the sentence, what is behind it.
SENTENCES = [
    ({"dsl": "up"}, [], "good", "The internet is all right.", ["dsl works."]),
    ({"dsl": "up", "lte": "standby"}, [], "good", "The internet is all right.", ["dsl works. lte stands by."]),
    ({"dsl": "up"}, ["metrics"], "warn", "The internet works, but something needs attention.", ["dsl works."]),
    (
        {"dsl": "degraded", "lte": "up"},
        ["uplink-degraded"],
        "warn",
        "dsl works badly.",
        ["Reason of dsl.", "New flows take dsl and lte."],
    ),
    ({"dsl": "up", "lte": "portal"}, [], "bad", "lte waits for a login.", ["Reason of lte.", "New flows take dsl."]),
    (
        {"dsl": "down", "lte": "dead", "sat": "up"},
        [],
        "bad",
        "2 uplinks do not work as they should.",
        ["dsl is down. Reason of dsl.", "lte does not answer. Reason of lte.", "New flows take sat."],
    ),
    (
        {"dsl": "down", "lte": "dead"},
        [],
        "bad",
        "The internet is down.",
        ["dsl is down. Reason of dsl.", "lte does not answer. Reason of lte."],
    ),
    ({}, [], "bad", "The internet is down.", ["No uplink takes new flows."]),
]


def test_the_sentence_on_top_says_how_it_is(shown: Shown) -> None:
    shown.log_in("viewer")
    for states_by_name, codes, tone, sentence, reasons in SENTENCES:
        uplinks = [
            {"name": name, "state": state, "why": f"reason of {name}"} for name, state in states_by_name.items()
        ]
        snapshot = {"uplinks": uplinks, "health": [{"code": code} for code in codes]}
        said = shown.tab.evaluate(f"import('/uplinks.js').then(({{verdict}}) => verdict({json.dumps(snapshot)}))")
        assert said == {"state": tone, "sentence": sentence, "reasons": reasons}


def test_a_destination_is_explained_and_an_operator_reloads(shown: Shown) -> None:
    tab = shown.tab
    shown.log_in()
    tab.type("#destination", f"{shown.net.server()}:80", enter=True)
    tab.wait("document.querySelectorAll('#story .steps li').length > 3")
    assert shown.net.server() in tab.evaluate("document.querySelector('#story').textContent")
    shown.net.host.run(["curl", "-sSf", "-o", "/dev/null", f"http://{shown.net.server(2)}/bytes/1000"])
    tab.evaluate("document.querySelector('#flows').scrollIntoView()")
    tab.type("#find", f"{shown.net.server(2)}:80")
    tab.wait("document.querySelectorAll('#flows-table tbody tr').length === 1")
    tab.click("#flows-table button.link")
    tab.wait(f"document.querySelector('#story').textContent.includes('{shown.net.server(2)}')")
    tab.wait("document.querySelector('#story .story ul')?.textContent.includes('takes')")
    tab.click("[data-post='/v1/reload']")
    tab.wait("document.querySelector('#outcome').textContent === 'Done.'")
    tab.wait("document.querySelector('.events').textContent.includes('the configuration was read again')")
    tab.click("[data-post='/v1/alarms/test']")
    tab.wait("document.querySelector('#outcome').textContent.includes('no alarm is configured')")
    tab.click("#logout")
    tab.wait("document.title === 'Log in - Braid'")
    assert [each for each in tab.complaints if not re.search("401|404", each)] == []


def test_a_viewer_sees_no_buttons_and_the_keyboard_is_enough(shown: Shown) -> None:
    tab = shown.tab
    shown.log_in("viewer")
    tab.wait(ALL_WELL)
    assert tab.evaluate("document.querySelector('#actions').hidden")
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    reached = tab.tab_through(12)
    assert {"logout", "A", "SUMMARY", "destination"} <= reached, reached


def test_hostile_names_are_shown_not_run(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(UplinkSpec("dsl", offload=False), UplinkSpec("<b>lte", offload=False))
    daemon = start_braid(net, "--config", configured(net, WEB))
    hostile = "<img src=x onerror='window.taken = true'>"
    daemon.call("run", "--uplink", "<b>lte", "--", "true", hostile)
    with browser(net.host.name) as tab:
        Shown(net, daemon, tab).log_in("viewer")
        tab.wait(f"document.querySelector('.events').textContent.includes({json.dumps(hostile)})")
        assert "<b>lte" in tab.evaluate("document.querySelector('#uplinks').textContent")
        assert tab.evaluate("document.querySelectorAll('main b, main img').length") == 0
        assert tab.evaluate("window.taken") is None
        # Even a script that came into the page would not be run.
        tab.add_script("window.taken = 1")
        assert tab.evaluate("window.taken") is None
        assert any("Content Security Policy" in each for each in tab.complaints)


def test_a_daemon_that_is_gone_is_told_and_the_page_goes_on_with_the_next(shown: Shown) -> None:
    tab = shown.tab
    shown.log_in()
    tab.wait(ALL_WELL)
    shown.daemon.kill9()
    tab.wait("!document.querySelector('#stale').hidden", timeout=8)
    shown.daemon.up("--config", configured(shown.net, WEB))
    tab.wait(f"document.querySelector('#stale').hidden && {ALL_WELL}", timeout=20)


#: Shows one list, then another. Returns the last keys, how many rows were put somewhere, and if known rows stayed.
MOVED = """
import('/dom.js').then(async ({element, keyed}) => {
  const parent = element('ul');
  const show = (keys) => keyed(parent, keys, (key) => key, () => element('li'), () => {});
  const keyOf = ({dataset}) => dataset.key;
  show(%s);
  const rows = new Map([...parent.children].map((row) => [keyOf(row), row]));
  let moved = 0;
  new MutationObserver((all) => all.forEach(({addedNodes}) => (moved += addedNodes.length)))
    .observe(parent, {childList: true});
  show(%s);
  await 0;
  const shown = [...parent.children];
  return {keys: shown.map(keyOf), moved, kept: shown.every((row) => [row, undefined].includes(rows.get(keyOf(row))))};
})
"""
KEYS = [f"flow {number}" for number in range(100)]


@pytest.mark.parametrize(
    ("keys", "moves"),
    [
        pytest.param([*KEYS[:40], *KEYS[41:]], 0, id="one-goes"),
        pytest.param(["new", *KEYS[:99]], 1, id="one-comes"),
        pytest.param([KEYS[70], *KEYS[:70], *KEYS[71:]], 1, id="one-rises"),
        pytest.param([*KEYS[1:80], KEYS[0], *KEYS[80:]], 2, id="one-falls"),
        pytest.param(KEYS[::-1], 198, id="all-turn-round"),
        pytest.param([], 0, id="none-stays"),
    ],
)
def test_a_list_moves_only_rows_that_have_moved(shown: Shown, keys: list[str], moves: int) -> None:
    shown.log_in("viewer")
    told = shown.tab.evaluate(MOVED % (json.dumps(KEYS), json.dumps(keys)))
    assert (told["keys"], told["kept"]) == (keys, True)
    assert told["moved"] <= moves


BUSY = (
    UplinkSpec("dsl", LinkSpec(rate="50Mbit/s", delay="9ms", queue="100ms")),
    UplinkSpec("lte", LinkSpec(rate="30Mbit/s", delay="22ms", queue="200ms")),
    UplinkSpec("sat", LinkSpec(rate="10Mbit/s", delay="280ms", queue="300ms")),
)
QUOTAS = """policy = "wrr"
[[uplink]]
device = "dsl"
capacity = "50 Mbit/s"
[[uplink]]
device = "lte"
capacity = "30 Mbit/s"
quota = "600 MB/month"
[[uplink]]
device = "sat"
capacity = "10 Mbit/s"
tier = 2
"""


@contextlib.contextmanager
def downloads(net: Topology) -> Iterator[None]:
    """Load the lines for the length of a block."""
    with contextlib.ExitStack() as stack:
        for number in range(1, 9):
            words = ["curl", "-sS", "--limit-rate", f"{number * 150}K", "-o", "/dev/null"]
            url = f"http://{net.server(number % 4 + 1)}/bytes/100000000"
            log = net.scratch / f"download-{number}"
            stack.enter_context(Process([*words, url], log=log, namespace=net.host.name))
        yield


def test_screenshots_have_no_accessibility_violation(
    make_network: MakeNetwork, start_braid: StartBraid, start_hub: StartHub, pictures: Path
) -> None:
    net = make_network(*BUSY)
    daemon = start_braid(net, "--config", configured(net, QUOTAS + WEB))
    with browser(net.host.name) as tab, downloads(net):
        shown = Shown(net, daemon, tab)
        album = Album(tab, pictures)
        tab.open(URL)
        album.photograph("login")
        shown.log_in()
        tab.wait(ALL_WELL, timeout=20)
        tab.evaluate("document.querySelector('#flows').scrollIntoView()")
        tab.wait("document.querySelectorAll('#flows-table tbody tr').length >= 8")
        # Charts and the flows' rates need some seconds of life.
        seconds = float(os.environ.get("BRAID_SCREENSHOT_SECONDS", "3"))
        tab.wait(f"(window.since ??= performance.now()) + {seconds * 1000} < performance.now()", timeout=seconds + 10)
        tab.type("#destination", f"{net.server()}:443", enter=True)
        tab.wait("document.querySelectorAll('#story .steps li').length > 3")
        album.photograph("well")
        with unplugged(net.uplinks["lte"]):
            tab.wait(f"{SENTENCE}.startsWith('lte has been down')")
            # The story is that of now.
            tab.wait("document.querySelector('#story h3').textContent === 'It takes dsl.'")
            album.photograph("unplugged")
        wait_until(lambda: states(daemon)["lte"] == "up", what="lte to be back", timeout=20)
        hub = start_hub(net)
        daemon.call("join", hub.invite("home"))
        tab.wait("document.querySelectorAll('#bond-links tbody tr').length >= 2", timeout=20)
        net.host.run(["curl", "-sSf", "-o", "/dev/null", f"http://{net.server()}/bytes/3000000"])
        album.photograph("bond")
    assert album.broken == {}


def test_the_last_day_is_drawn_as_the_daemon_has_kept_it(shown: Shown) -> None:
    tab = shown.tab
    shown.log_in()
    tab.wait(ALL_WELL, timeout=20)
    tab.evaluate("document.querySelector('[data-span=day]').click(); 0")
    tab.wait("document.querySelector('#down-chart .labels').textContent.includes('1 d ago')")
    # One area for each line, from the start of the step that is under way.
    drawn = "[...document.querySelectorAll('#down-chart path')].filter((path) => path.getAttribute('d'))"
    tab.wait(f"{drawn}.length === 2", timeout=20)
    tab.evaluate("document.querySelector('[data-span=live]').click(); 0")
    tab.wait("!document.querySelector('#down-chart .labels').textContent.includes('1 d ago')")
    assert violations(shown.tab) == []


def test_a_hub_invites_by_qr_code_and_shows_who_came(
    net: Topology, start_braid: StartBraid, pictures: Path, tmp_path: Path
) -> None:
    with (
        remote_host(net) as far,
        running_hub(far, net.scratch / far.namespace.name, WEB) as hub,
        browser(far.namespace.name) as tab,
    ):
        album = Album(tab, pictures)
        tab.open(URL)
        tab.type("#token", hub.json("web", "token")["token"], enter=True)
        tab.wait(f"{SENTENCE} === 'No client has joined yet.'")
        tab.type("#name", "van", enter=True)
        tab.wait("document.querySelectorAll('#invitation svg.qr').length === 1")
        tab.evaluate("document.querySelector('#invitation svg.qr').scrollIntoView()")
        code = tmp_path / "code.png"
        tab.screenshot(code)
        daemon = start_braid(net)
        daemon.call("join", "--scan", code)
        tab.wait(f"{SENTENCE} === 'The only client is connected.'", timeout=20)
        tab.wait("document.querySelector('#news').textContent === 'van connected'")
        hub.invite("roof")
        tab.wait("document.querySelectorAll('#clients-table tbody tr').length === 2")
        album.photograph("hub")
        # Its page asks before it shuts somebody out.
        tab.evaluate("window.confirm = () => true; 0")
        tab.click("#clients-table [aria-label='Revoke van']")
        tab.wait("document.querySelector('#revoked').textContent === 'van is revoked.'")
        tab.wait("document.querySelector('#clients-table').textContent.includes('revoked')")
        assert [each for each in tab.complaints if "401" not in each] == []
        assert {url[: len(URL)] for url in tab.requested() if not url.startswith("about:")} == {URL}
    assert album.broken == {}
