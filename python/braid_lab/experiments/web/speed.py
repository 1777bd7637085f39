"""`web/speed`: the page beside ten thousand flows: its cost for the daemon, and how quick it is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import quantiles

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.balance import loads
from braid_lab.experiments.balance.ab_testbed import AbTestbed, ab_testbed
from braid_lab.page import LISTEN, WEB, Visitor, token
from braid_lab.process import processor_seconds, wait_until
from braid_lab.product import Braid, braid
from braid_lab.programs.browser import browser_program
from braid_lab.programs.devtools import Tab, browser

VIEWERS = 10

#: The page asks for the flows so often while they are in sight, in seconds.
FLOWS_PACE = 5.0

#: Counts the snapshots that the page has shown, by a part that each of them changes, and waits for one of them.
COUNT = """
window.shown = 0;
new MutationObserver(() => { window.shown += 1 })
  .observe(document.querySelector('#down-chart'), {subtree: true, attributes: true, attributeFilter: ['d']});
window.reach = (count) => new Promise((done) => {
  const look = () => window.shown >= count ? done(1) : setTimeout(look, 50);
  look();
}); 0
"""


@dataclass(frozen=True)
class Plan:
    """Amount of measurement."""

    flows: int
    #: Rounds without and with viewers, and the length of each.
    rounds: int
    seconds: float
    #: Openings of the page, and updates, that are timed.
    openings: int
    updates: int


FULL = Plan(flows=10_000, rounds=8, seconds=15.0, openings=20, updates=120)
QUICK = Plan(flows=10_000, rounds=3, seconds=10.0, openings=5, updates=20)
SMOKE = Plan(flows=200, rounds=1, seconds=1.0, openings=1, updates=2)


@experiment(
    "web/speed", "The page: what ten viewers cost the daemon, and how quickly it is shown and kept up to date"
)
def speed(run: Run) -> None:
    """Measure the daemon's processor time without and with viewers, then the page in Chromium."""
    plan = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    with contextlib.ExitStack() as stack:
        with run.step("build a gateway between a client and the internet"):
            net = stack.enter_context(ab_testbed())
            config = net.scratch / "web.toml"
            config.write_text(f'policy = "rr"\n{WEB}')
            daemon = stack.enter_context(braid(net.braid.gateway, net.scratch / "braid", "--config", config))
        with run.step(f"open {plan.flows:,} flows"):
            stack.enter_context(loads.hold(net, net.braid, plan.flows))
        with run.part("viewers"):
            _viewers(run, net, daemon, plan)
        if browser_program() is not None:
            with run.part("browser"):
                _browser(run, net, daemon, plan)


def _viewers(run: Run, net: AbTestbed, daemon: Braid, plan: Plan) -> None:
    pid = daemon.pid
    visitors = [Visitor(net.braid.gateway, net.scratch) for _ in range(VIEWERS)]
    with run.step(f"log {VIEWERS} viewers in"):
        for visitor in visitors:
            visitor.log_in(token(daemon, "viewer"))
    alone, watched, listing = [], [], []
    for number in range(plan.rounds):
        with run.step(f"round {number + 1} of {plan.rounds}"):
            alone.append(_busy(pid, plan.seconds))
            with _watching(visitors):
                watched.append(_busy(pid, plan.seconds))
                before, began = processor_seconds(pid), time.monotonic()
                for visitor in visitors:
                    visitor.ask("/v1/flows?limit=12")
                # As a share of a core if each viewer has the flows in sight; what the stream costs is known.
                asked = processor_seconds(pid) - before - watched[-1] * (time.monotonic() - began)
                listing.append(asked / FLOWS_PACE)
    more = [after - before for before, after in zip(alone, watched, strict=True)]
    run.measure("daemon_cpu_alone", alone, unit="cores", better="lower")
    run.measure("daemon_cpu_ten_viewers_more", more, unit="cores", better="lower")
    run.measure("daemon_cpu_ten_flow_lists_more", listing, unit="cores", better="lower")


def _busy(pid: int, seconds: float) -> float:
    """Return the share of a core that a process uses in a while."""
    before, began = processor_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (processor_seconds(pid) - before) / (time.monotonic() - began)


@contextlib.contextmanager
def _watching(visitors: list[Visitor]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(visitor.stream()) for visitor in visitors]
        wait_until(lambda: all(stream.messages("snapshot") for stream in streams), what="all streams to begin")
        yield


def _browser(run: Run, net: AbTestbed, daemon: Braid, plan: Plan) -> None:
    with browser(net.braid.gateway.name) as tab:
        with run.step("log in"):
            tab.open(f"http://{LISTEN}/")
            tab.type("#token", token(daemon, "viewer"), enter=True)
            tab.wait("document.querySelectorAll('.card').length > 0")
        with run.step(f"open the page {plan.openings} times"):
            painted = [_first_paint(tab) for _ in range(plan.openings)]
        run.measure("first_paint_ms", painted, unit="ms", better="lower")
        with run.step(f"watch {plan.updates} updates, the flows in sight"):
            tab.evaluate("document.querySelector('#flows').scrollIntoView({behavior: 'instant'})")
            tab.wait("document.querySelectorAll('#flows-table tbody tr').length >= 12")
            tab.click("#more-flows")
            tab.wait("document.querySelectorAll('#flows-table tbody tr').length >= 100")
            took, computed = _updates(tab, plan.updates)
        for name, values in (("update", took), ("update_cpu", computed)):
            run.measure(f"{name}_ms", values, unit="ms", better="lower")
            p95 = quantiles(values, n=20, method="inclusive")[-1]
            run.figure(f"{name}_ms_p95", p95, unit="ms", better="lower", runs=len(values))


def _first_paint(tab: Tab) -> float:
    """Return the time from the navigation to the first contents on the screen, the cards included."""
    tab.open(f"http://{LISTEN}/")
    tab.wait("document.querySelectorAll('.card').length > 0")
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    return float(tab.wait(paint))


def _updates(tab: Tab, count: int) -> tuple[list[float], list[float]]:
    """Return the time, in milliseconds, that the page's thread was busy for each of so many snapshots.

    And its processor time: on a machine that does other things as well, the first includes the wait for a processor.
    """
    tab.call("Performance.enable")

    def busy() -> tuple[float, float]:
        metrics = {each["name"]: each["value"] for each in tab.call("Performance.getMetrics")["metrics"]}
        return float(metrics["TaskDuration"]) * 1000, float(metrics["ThreadTime"]) * 1000

    tab.evaluate(COUNT)
    took, computed = [], []
    for number in range(1, count + 1):
        began = busy()
        tab.evaluate(f"window.reach({number})")
        ended = busy()
        took.append(ended[0] - began[0])
        computed.append(ended[1] - began[1])
    return took, computed
