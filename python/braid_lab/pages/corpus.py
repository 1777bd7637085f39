"""A corpus of web sites, generated from a seed to the distributions of [host] §4.

The paper loaded the front pages of 100 sites: about 42 flows a site with a tail to 281 (Fig. 6), most flows at most
a few hundred kB and the largest near 5 MB (Fig. 7). It does not publish the sites. Here flow counts and object sizes
are the quantiles of two log-normal distributions, dealt out in an order that depends on the seed: every seed has the
same two distributions, and different sites.

    document ── styles
             ── scripts ── images, scripts, fetches ── images
             ── images
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from braid_lab.process import LabError

Kind = Literal["document", "style", "script", "image", "fetch"]
KINDS: tuple[Kind, ...] = ("document", "style", "script", "image", "fetch")

#: Kinds of objects that each kind can make a browser ask for, in the files that `files` writes.
DEPENDENCIES: dict[Kind, tuple[Kind, ...]] = {
    "document": ("style", "script", "image"),
    "style": (),
    "script": ("script", "image", "fetch"),
    "image": (),
    "fetch": ("image", "script"),
}

SITES = 100

#: Limit of browsers with HTTP/1.1.
CONNECTIONS_PER_HOST = 6

#: Log-normal flows per site: mean 42, and 281 at the highest of 100 quantiles.
FLOWS_MEDIAN, FLOWS_SIGMA = 28.6, 0.887

#: Log-normal object sizes: a mean of 36 kB, and 4.5 to 5 MB at the highest quantile of some 8000 objects.
OBJECT_MEDIAN_BYTES, OBJECT_SIGMA = 10_000, 1.6
SMALLEST_BYTES = 300
LARGEST_BYTES = 5_000_000

#: Objects that a site's own host with all six connections has beyond them, on average.
MORE_OBJECTS = 11.0

#: Objects of a third party's host, by how often: most serve one or two.
THIRD_PARTY_OBJECTS = {1: 70, 2: 22, 3: 8}

#: Hosts of many sites, such as counters and libraries.
THIRD_PARTIES = 400

#: Share of the kinds among objects other than the document.
KIND_SHARES: dict[Kind, float] = {"style": 0.06, "script": 0.27, "image": 0.58, "fetch": 0.09}

#: Share of scripts and images that a script asks for, and of images that a fetch's answer names.
BY_SCRIPT, BY_FETCH = 0.25, 0.05


@dataclass(frozen=True)
class Object:
    """One object of a site; its parent, by its place in `Site.objects`, makes the browser ask for it."""

    kind: Kind
    host: str
    path: str
    size: int
    parent: int | None

    @property
    def url(self) -> str:
        """Its address."""
        return f"https://{self.host}{self.path}"


@dataclass(frozen=True)
class Site:
    """A site's front page: objects, parents before their children, the document first."""

    name: str
    objects: tuple[Object, ...]

    @property
    def size(self) -> int:
        """Bytes of all its objects."""
        return sum(each.size for each in self.objects)

    @property
    def hosts(self) -> list[str]:
        """Its host names, the document's first."""
        return list(dict.fromkeys(each.host for each in self.objects))

    @property
    def flows(self) -> int:
        """Connections that a browser with HTTP/1.1 opens for it, roughly: six to the site's own hosts, one to others.

        Chromium has no more than ten requests of low priority under way, so it seldom opens a second connection to a
        host of two or three objects, and `pages/flows` counts what it does.
        """
        counts = Counter(each.host for each in self.objects)
        own = {host for host in counts if host.endswith(f".{self.name}.test")}
        return sum(min(CONNECTIONS_PER_HOST, count) if host in own else 1 for host, count in counts.items())

    def children(self, number: int) -> list[int]:
        """Return the places of the objects that an object asks for."""
        return [place for place, each in enumerate(self.objects) if each.parent == number]


def generate(seed: int, sites: int = SITES) -> list[Site]:
    """Return the corpus of a seed; the same arguments give the same sites."""
    generator = random.Random(f"corpus {seed}")
    flows = [max(3, round(each)) for each in _quantiles(FLOWS_MEDIAN, FLOWS_SIGMA, sites)]
    generator.shuffle(flows)
    hosts = [_hosts(generator, number, count) for number, count in enumerate(flows, 1)]
    count = sum(sum(each.values()) for each in hosts)
    quantiles = _quantiles(OBJECT_MEDIAN_BYTES, OBJECT_SIGMA, count)
    sizes = [min(LARGEST_BYTES, max(SMALLEST_BYTES, round(size))) for size in quantiles]
    generator.shuffle(sizes)
    return [_site(generator, number, objects, sizes) for number, objects in enumerate(hosts, 1)]


def _quantiles(median: float, sigma: float, count: int) -> list[float]:
    normal = statistics.NormalDist()
    return [median * math.exp(sigma * normal.inv_cdf((place + 0.5) / count)) for place in range(count)]


def _hosts(generator: random.Random, number: int, flows: int) -> dict[str, int]:
    """Return a site's hosts with their numbers of objects, which make as many flows as wanted."""
    domain = f"site{number:03}.test"
    own = [f"{name}.{domain}" for name in ("www", "static", "img", "api")[: 1 + min(3, flows // 8)]]
    strangers = [f"third{each:03}.test" for each in generator.sample(range(THIRD_PARTIES), THIRD_PARTIES)]
    hosts: dict[str, int] = {}
    left = flows
    for host in own:
        connections = min(left, CONNECTIONS_PER_HOST)
        more = round(generator.expovariate(1 / MORE_OBJECTS)) if connections == CONNECTIONS_PER_HOST else 0
        if connections:
            hosts[host] = connections + more
        left -= connections
    for host in strangers[:left]:
        hosts[host] = generator.choices(list(THIRD_PARTY_OBJECTS), list(THIRD_PARTY_OBJECTS.values()))[0]
    return hosts


def _site(generator: random.Random, number: int, hosts: dict[str, int], sizes: list[int]) -> Site:
    """Build a site's objects, with sizes from the end of the list."""
    places = [host for host, count in hosts.items() for _ in range(count)]
    drawn = sorted(sizes.pop() for _ in places)
    # The document is the object of middle size: never the largest, and never a few bytes.
    document = drawn.pop(len(drawn) // 2)
    generator.shuffle(drawn)
    origin, *others = places
    generator.shuffle(others)
    objects = [Object("document", origin, "/", document, None)]
    kinds = generator.choices(list(KIND_SHARES), list(KIND_SHARES.values()), k=len(others))
    # Parents before children.
    order: list[Kind] = ["style", "script", "fetch", "image"]
    ordered = sorted(zip(kinds, others, drawn, strict=True), key=lambda each: order.index(each[0]))
    scripts: list[int] = []
    fetches: list[int] = []
    for place, (kind, host, size) in enumerate(ordered, 1):
        parent = 0
        if scripts and (kind == "fetch" or (kind in ("script", "image") and generator.random() < BY_SCRIPT)):
            parent = generator.choice(scripts)
        elif fetches and kind == "image" and generator.random() < BY_FETCH:
            parent = generator.choice(fetches)
        actual: Kind = "image" if kind == "fetch" and not scripts else kind
        if actual == "script":
            scripts.append(place)
        elif actual == "fetch":
            fetches.append(place)
        objects.append(Object(actual, host, f"/{place}{SUFFIX[actual]}", size, parent))
    return Site(f"site{number:03}", tuple(objects))


SUFFIX: dict[Kind, str] = {"document": ".html", "style": ".css", "script": ".js", "image": ".png", "fetch": ".bin"}


def spread(sites: Sequence[Site], count: int) -> list[Site]:
    """Return `count` sites at even quantiles of size, the middles of as many equal parts, in the corpus's order."""
    ranked = sorted(sites, key=lambda each: each.size)
    chosen = {ranked[int((place + 0.5) * len(ranked) / count)].name for place in range(count)}
    return [each for each in sites if each.name in chosen]


def write(sites: Iterable[Site], file: Path) -> None:
    """Write sites as JSON."""
    file.write_text(json.dumps({"sites": [asdict(each) for each in sites]}, indent=1) + "\n")


def read(file: Path) -> list[Site]:
    """Read what `write` wrote, perhaps changed by hand."""
    try:
        told = json.loads(file.read_text())
        sites = [Site(each["name"], tuple(Object(**one) for one in each["objects"])) for each in told["sites"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(f"{file}: no corpus ({error}); braid lab corpus writes one") from error
    for site in sites:
        _check(site, file)
    return sites


def _check(site: Site, file: Path) -> None:
    """Raise LabError for a site that no browser could load."""
    for place, each in enumerate(site.objects):
        where = f"{file}: {site.name}, object {place} ({each.url})"
        if each.kind not in KINDS:
            raise LabError(f"{where}: kind {each.kind!r} is none of {', '.join(KINDS)}")
        if (place == 0) != (each.kind == "document") or (place == 0) != (each.parent is None):
            raise LabError(f"{where}: the first object, and no other, is a document without a parent")
        if each.parent is not None and not 0 <= each.parent < place:
            raise LabError(f"{where}: its parent {each.parent} does not come before it")
        if each.parent is not None and each.kind not in DEPENDENCIES[site.objects[each.parent].kind]:
            raise LabError(f"{where}: a {site.objects[each.parent].kind} makes no browser ask for a {each.kind}")
