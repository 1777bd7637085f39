"""Two loaders of pages: Chromium, and a client that replays the same dependencies (`braid_lab.clients.site`).

Both resolve names and check certificates in the lab, and open every page with nothing kept of earlier ones. The page
load time is the paper's: "the time from when the first HTTP GET Request is sent, until the page is completely
loaded".
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from braid_lab.net.namespace import Namespace
from braid_lab.pages.corpus import Site
from braid_lab.pages.sites import MPTCPIZE, PORT, Served
from braid_lab.process import LabError
from braid_lab.programs.browser import browser_program
from braid_lab.programs.devtools import Tab, browser

LoaderName = Literal["browser", "fast"]
LOADERS: tuple[LoaderName, ...] = ("browser", "fast")

#: Longest load of a page: the largest of the corpus, 19.8 MB, over 0.7 Mbit/s.
PAGE_SECONDS = 240.0

#: Options of Chromium for each protocol. It prefers HTTP/2 to HTTP/1.1, and speaks HTTP/3 to servers whose authority
#: is no public one only if it is told to.
PROTOCOL_OPTIONS = {
    "http/1.1": ("--disable-http2", "--disable-quic"),
    "h2": ("--disable-quic",),
    "h3": ("--enable-quic",),
}

#: Script by which a page tells its times, once its load event is over and its first and largest paint are known. The
#: largest paint is the last one noticed; frames follow one another in less than a tenth of a second.
TIMES = """
(async () => {
  const paints = {};
  const noticed = (type) => new Promise((resolve) => {
    new PerformanceObserver((list) => {
      (paints[type] ??= []).push(...list.getEntries());
      if (type !== "paint" || performance.getEntriesByName("first-contentful-paint").length) resolve();
    }).observe({type, buffered: true});
  });
  const [navigation] = performance.getEntriesByType("navigation");
  const resources = performance.getEntriesByType("resource");
  await Promise.all([noticed("paint"), noticed("largest-contentful-paint")]);
  await new Promise((resolve) => setTimeout(resolve, 100));
  return JSON.stringify({
    start: navigation.requestStart,
    end: navigation.loadEventStart,
    fcp: performance.getEntriesByName("first-contentful-paint")[0].startTime,
    lcp: Math.max(...paints["largest-contentful-paint"].map((each) => each.startTime)),
    protocols: [navigation, ...resources].map((each) => [each.name, each.nextHopProtocol]),
    bytes: [navigation, ...resources].reduce((sum, each) => sum + each.encodedBodySize, 0),
  });
})()
"""

#: As many entries as any page has objects.
KEEP_ENTRIES = "performance.setResourceTimingBufferSize(5000)"


class PageError(LabError):
    """A page did not load, or not in time."""


@dataclass(frozen=True)
class PageLoad:
    """One load of a page: times in seconds, the paints from the beginning of the navigation on."""

    seconds: float
    #: Paints that people see: the first content, and the largest. None from the client that draws nothing.
    fcp_s: float | None
    lcp_s: float | None
    #: Bytes of the objects that had come by the load event.
    bytes: int
    #: Connections that were opened; the browser does not tell.
    flows: int | None = None
    #: Objects that did not arrive and that no other depends on.
    missing: int = 0

    def row(self) -> dict[str, Any]:
        """Return it as a row of a table."""
        return asdict(self)


#: Loads a site's page.
Load = Callable[[Site], PageLoad]


def require(name: LoaderName) -> None:
    """Raise LabError if a loader's program is not installed."""
    if name == "browser" and browser_program() is None:
        raise LabError("chromium-headless-shell not found (tools/setup bench); --loader=fast does without")


@contextlib.contextmanager
def loader(
    name: LoaderName,
    place: Namespace,
    served: Served,
    protocol: str,
    *,
    mptcp: bool = False,
    timeout: float = PAGE_SECONDS,
) -> Iterator[Load]:
    """Provide a loader in a namespace, which raises PageError for a page that fails or takes over `timeout` seconds.

    With `mptcp` it opens MPTCP connections in place of TCP ones.
    """
    if name == "fast":
        yield lambda site: _replayed(place, served, protocol, site, mptcp=mptcp, timeout=timeout)
        return
    with window(place, served, protocol, mptcp=mptcp) as tab:
        yield lambda site: _browsed(tab, protocol, site, timeout)


@contextlib.contextmanager
def window(place: Namespace, served: Served, protocol: str, *, mptcp: bool = False) -> Iterator[Tab]:
    """Open a Chromium that knows the names of served sites, trusts them, and speaks a protocol with them."""
    options = [
        *PROTOCOL_OPTIONS[protocol],
        f"--ignore-certificate-errors-spki-list={served.fingerprint}",
        # IPv4 alone has names here.
        "--disable-ipv6",
        "--autoplay-policy=no-user-gesture-required",
    ]
    if protocol == "h3":
        options.append(f"--origin-to-force-quic-on={','.join(f'{host}:{PORT}' for host in served.hosts)}")
    with browser(place.name, options, lambda argv: _around(served, argv, mptcp=mptcp)) as tab:
        yield tab


def _around(served: Served, argv: Sequence[str], *, mptcp: bool) -> list[str]:
    return served.resolving([*(MPTCPIZE if mptcp else []), *argv])


def _replayed(
    place: Namespace, served: Served, protocol: str, site: Site, *, mptcp: bool, timeout: float
) -> PageLoad:
    words = [str(served.corpus), site.name, protocol, str(served.trust)]
    argv = _around(served, [sys.executable, "-m", "braid_lab.clients.site", *words], mptcp=mptcp)
    try:
        told = json.loads(place.run(argv, timeout=timeout).stdout)
    except LabError as error:
        raise PageError(f"{site.name}: {error}") from error
    return PageLoad(told["seconds"], None, None, told["bytes"], told["flows"])


def _browsed(tab: Tab, protocol: str, site: Site, timeout: float) -> PageLoad:
    with tab.without_memory():
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=KEEP_ENTRIES)
        tab.call("Page.navigate", url=site.objects[0].url)
        try:
            tab.wait(
                "document.readyState === 'complete' && location.href !== 'about:blank'"
                " && performance.getEntriesByType('navigation')[0].loadEventEnd > 0",
                timeout,
            )
            told = json.loads(tab.evaluate(TIMES))
        except LabError as error:
            raise PageError(f"{site.name}: {error}") from error
    missing = check_arrived(site, protocol, told["protocols"])
    start, end, first, largest = (told[each] / 1000 for each in ("start", "end", "fcp", "lcp"))
    return PageLoad(end - start, first, largest, told["bytes"], missing=missing)


def check_arrived(site: Site, protocol: str, entries: Iterable[Sequence[str]]) -> int:
    """Return the number of objects, URL and protocol, that did not arrive.

    A page without an object that makes the browser ask for others is another page, and has failed. LabError is
    raised if another protocol was spoken.
    """
    spoken: dict[str, list[str]] = {}
    for url, each in entries:
        spoken.setdefault(each, []).append(url)
    # The server of an object that failed answered by none.
    missing = spoken.pop("", [])
    if others := [each for each in spoken if each != protocol]:
        raise LabError(f"{site.name}: the browser spoke {', '.join(others)} in place of {protocol}")
    parents = {site.objects[each.parent].url for each in site.objects if each.parent is not None}
    if lost := [url for url in missing if url in parents or url == site.objects[0].url]:
        raise PageError(f"{site.name}: did not arrive: {', '.join(lost)}")
    return len(missing)
