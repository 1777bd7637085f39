"""The client that replays web sites, over every protocol from the real servers; objects that a browser lacks."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from braid_lab.clients.site import LOW_PRIORITY_REQUESTS, Page
from braid_lab.net.topology import Topology, UplinkSpec, network
from braid_lab.pages.corpus import CONNECTIONS_PER_HOST, Object, Site
from braid_lab.pages.loaders import PageError, check_arrived, loader
from braid_lab.pages.sites import served
from braid_lab.process import LabError
from braid_lab.servers.certificate import Certificate

#: A document, a script that fetches, an image that the fetch's answer names, and eight images of one more host.
SITE = Site(
    "small",
    (
        Object("document", "www.small.test", "/", 20_000, None),
        Object("style", "www.small.test", "/1.css", 3_000, 0),
        Object("script", "cdn.small.test", "/2.js", 9_000, 0),
        Object("fetch", "api.small.test", "/3.bin", 700, 2),
        Object("image", "img.small.test", "/4.png", 5_000, 3),
        *(Object("image", "img.small.test", f"/{number}.png", 40_000, 0) for number in range(5, 13)),
    ),
)


@pytest.fixture(scope="module")
def net() -> Iterator[Topology]:
    with network([UplinkSpec("line", families=frozenset({4}))]) as made:
        yield made


@pytest.mark.parametrize("protocol", ["http/1.1", "h2", "h3"])
def test_a_page_comes_whole_over_as_many_connections_as_browsers_open(net: Topology, protocol: str) -> None:
    with served(net, [SITE], protocol) as sites, loader("fast", net.host, sites, protocol) as load:
        page = load(SITE)
    assert page.bytes == SITE.size
    assert 0 < page.seconds < 5
    assert page.flows is not None
    counts = Counter(each.host for each in SITE.objects)
    if protocol == "http/1.1":
        assert len(counts) < page.flows <= sum(min(CONNECTIONS_PER_HOST, count) for count in counts.values())
    else:
        assert page.flows == len(counts)


def test_a_server_without_a_certificate_of_the_authority_is_refused(net: Topology, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.pem"
    stranger.write_bytes(Certificate.authority().certificate.public_bytes(Encoding.PEM))
    for protocol in ("h2", "h3"):
        with served(net, [SITE], protocol) as sites:
            deceived = dataclasses.replace(sites, trust=stranger)
            with (
                loader("fast", net.host, deceived, protocol) as load,
                pytest.raises(PageError, match="certificate"),
            ):
                load(SITE)


class Scripted:
    """Stands for a protocol: answers when told to."""

    def __init__(self) -> None:
        """Have no requests yet."""
        self.flows = 0
        self.asked: dict[str, asyncio.Event] = {}

    async def fetch(self, what: Object, sent: Callable[[], None], began: Callable[[], None]) -> int:
        sent()
        end = self.asked[what.path] = asyncio.Event()
        began()
        await end.wait()
        return what.size


def test_requests_follow_the_dependencies_and_fetches_do_not_delay_the_load() -> None:
    async def course() -> None:
        transport = Scripted()
        page = Page(SITE, transport, None)
        loading = asyncio.create_task(page.load())

        async def after(*ended: str) -> set[str]:
            for path in ended:
                transport.asked.pop(path).set()
            for _ in range(10):
                await asyncio.sleep(0)
            return set(transport.asked)

        images = {f"/{number}.png" for number in range(5, 13)}
        # The document has only begun.
        assert await after() == {"/", "/1.css", "/2.js", *images}
        assert await after("/2.js") == {"/", "/1.css", "/3.bin", *images}
        assert await after("/", "/1.css", *images) == {"/3.bin"}
        loaded = page.delaying == 0
        assert await after("/3.bin") == {"/4.png"}
        assert await after("/4.png") == set()
        assert loaded
        # The load event was due before the fetch's end.
        assert 0 <= await loading < 1
        assert page.bytes == SITE.size

    asyncio.run(course())


def test_requests_of_low_priority_wait_for_one_another() -> None:
    async def course() -> int:
        transport = Scripted()
        objects = [Object("document", "www.small.test", "/", 1000, None)]
        objects += [Object("image", "img.small.test", f"/{number}.png", 1000, 0) for number in range(1, 31)]
        page = Page(Site("many", tuple(objects)), transport, asyncio.Semaphore(LOW_PRIORITY_REQUESTS))
        loading = asyncio.create_task(page.load())
        most = 0
        while not loading.done():
            for _ in range(10):
                await asyncio.sleep(0)
            most = max(most, sum(path != "/" for path in transport.asked))
            for path in list(transport.asked):
                transport.asked.pop(path).set()
        return most

    assert asyncio.run(course()) == LOW_PRIORITY_REQUESTS


def test_objects_that_do_not_arrive_are_counted_and_named_if_others_depend_on_them() -> None:
    host = "www.a.test"
    objects = [Object("document", host, "/", 1000, None), Object("script", host, "/1.js", 1000, 0)]
    objects += [Object("image", host, f"/{number}.png", 1000, number - 1) for number in (1, 2)]
    site = Site("a", tuple(objects))
    document, script, image, other = (each.url for each in objects)

    def arrived(protocol: str, *entries: tuple[str, str]) -> int:
        return check_arrived(site, protocol, entries)

    assert arrived("h3", (document, "h3"), (script, "h3"), (image, "h3"), (other, "h3")) == 0
    assert arrived("h3", (document, "h3"), (script, "h3"), (image, ""), (other, "")) == 2
    with pytest.raises(PageError, match=f"^a: did not arrive: {script}$"):
        arrived("h3", (document, "h3"), (script, ""), (image, ""))
    with pytest.raises(PageError, match=f"^a: did not arrive: {document}$"):
        arrived("h3", (document, ""))
    with pytest.raises(LabError, match=r"^a: the browser spoke h2, http/1.1 in place of h3$"):
        arrived("h3", (document, "h2"), (script, "http/1.1"), (image, ""))
