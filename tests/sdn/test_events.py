"""The journal of changes, and the reasons of what is lost and of paths that change."""

from __future__ import annotations

import re

from braid_lab.fabric.shapes import two_paths
from braid_sdn.fabric.api import report
from braid_sdn.fabric.api.events import MAX_EVENTS, Event, Journal, Snapshot, changes

from .virtual import frame, mac, ready

BEGAN = 1_800_000_000_000


def test_the_journal_keeps_the_last_events_with_growing_numbers() -> None:
    journal = Journal(BEGAN)
    for number in range(MAX_EVENTS + 10):
        journal.add(BEGAN + number, Event("link-found", {"source": str(number)}))
    kept = journal.after(0)
    assert len(kept) == MAX_EVENTS
    assert [each["number"] for each in kept] == list(range(BEGAN + 11, BEGAN + MAX_EVENTS + 11))
    assert journal.after(journal.last) == []
    assert [each["fields"]["source"] for each in journal.after(journal.last - 1)] == [str(MAX_EVENTS + 9)]


def test_a_link_that_brings_nothing_more_and_a_switch_that_leaves_are_told_with_their_reasons() -> None:
    net = ready(two_paths())
    before = Snapshot.of(net.controller, net.now)
    net.silence("A", "P")
    # A direction over which nothing is known to be silent is lost with its discovery frames, some seconds later.
    net.run_until(lambda: len(net.controller.topology.lost_links) == 2, within=10)
    after = Snapshot.of(net.controller, net.now)
    told = [event for event in changes(before, after) if event.name == "link-lost"]
    assert len(told) == 2
    for event in told:
        assert re.search("brought nothing when it was checked|no discovery frame has come", str(event.fields["why"]))
    net.disconnect("Q")
    net.run(1)
    gone = next(event for event in changes(after, Snapshot.of(net.controller, net.now)))
    assert (gone.name, gone.fields["switch"]) == ("switch-disconnected", "Q")
    assert gone.fields["why"] == "the test ended its connection"
    status = report.status(net.controller, net.now)
    assert [each["name"] for each in status["lost_switches"]] == ["Q"]
    assert {each["source"] for each in status["lost_links"]} == {"A:A-P", "P:P-A"}
    # Back again, they are not missing any more.
    net.silence("A", "P", on=False)
    net.connect("Q")
    net.run(5)
    status = report.status(net.controller, net.now)
    assert (status["lost_switches"], status["lost_links"]) == ([], [])
    # An hour later nobody is told of what was lost for good.
    net.unplug("A", "P")
    net.run(1)
    assert len(net.controller.topology.missing(net.now)[0]) == 2
    assert net.controller.topology.missing(net.now + 3700) == ({}, {})


def test_a_path_that_returns_and_one_that_falls_silent_are_told_with_their_reasons() -> None:
    net = ready(two_paths())
    net.unplug("A", "P")
    net.run(2)
    before = Snapshot.of(net.controller, net.now)
    net.unplug("A", "P", up=True)
    net.run(5)
    told = {
        event.fields["source"]: event
        for event in changes(before, Snapshot.of(net.controller, net.now))
        if event.name == "paths-used"
    }
    assert told["ha"].fields["why"] == "A>P>B is new: a link of it was found"
    assert set(str(told["ha"].fields["paths"]).split()) == {"A>P>B", "A>Q>B"}


def test_the_load_of_links_is_that_of_now_also_without_edges() -> None:
    net = ready(two_paths(), edges=())
    for _ in range(400):
        net.send("ha", frame(mac(1), mac(2), b"x" * 1000))
        net.run(0.01)
    used = max(each["used_bit_s"] for each in report.status(net.controller, net.now)["links"])
    assert used > 500_000
