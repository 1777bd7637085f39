"""Sites from HAR files, as browsers' developer tools export them (HAR 1.2).

The tools of Chromium note what made the browser ask for each object (`_initiator`); where that is missing, it is
taken for the document. Redirects, failed requests and objects of other protocols are left out, and hosts get names of
the lab, so that no request could ever go to the real ones.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from braid_lab.pages.corpus import SMALLEST_BYTES, SUFFIX, Kind, Object, Site
from braid_lab.process import LabError

#: MIME types, by the beginning that decides. Everything else a script has fetched.
KINDS: tuple[tuple[str, Kind], ...] = (
    ("text/css", "style"),
    ("text/javascript", "script"),
    ("application/javascript", "script"),
    ("application/x-javascript", "script"),
    ("image/", "image"),
    # A browser waits for fonts as for images.
    ("font/", "image"),
    ("application/font", "image"),
)


def site(file: Path) -> Site:
    """Return the site of a HAR file, called like the file."""
    try:
        entries = json.loads(file.read_text())["log"]["entries"]
        loaded = [each for each in entries if _usable(each)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(f"{file}: no HAR file ({type(error).__name__}: {error})") from error
    if not loaded:
        raise LabError(f"{file}: no request in it was answered over http or https")
    name = re.sub(r"[^a-z0-9]+", "-", file.stem.lower()).strip("-") or "site"
    loaded.sort(key=lambda each: each.get("startedDateTime", ""))
    places: dict[str, int] = {}
    hosts: dict[str, str] = {}
    objects: list[Object] = []
    for entry in loaded:
        url = entry["request"]["url"]
        if url in places:
            continue
        place = places[url] = len(objects)
        host = hosts.setdefault(urlsplit(url).hostname or "", f"host{len(hosts) + 1}.{name}.test")
        kind = _kind(entry) if place else "document"
        parent = _parent(entry, kind, places, objects) if place else None
        if kind == "fetch" and (parent is None or objects[parent].kind != "script"):
            # No script is known that could have fetched it.
            kind = "image"
        path = f"/{place}{SUFFIX[kind]}" if place else "/"
        objects.append(Object(kind, host, path, max(SMALLEST_BYTES, _size(entry)), parent))
    return Site(name, tuple(objects))


def _usable(entry: dict[str, Any]) -> bool:
    web = urlsplit(entry["request"]["url"]).scheme in ("http", "https")
    return web and 200 <= entry["response"]["status"] < 300


def _kind(entry: dict[str, Any]) -> Kind:
    mime = entry["response"].get("content", {}).get("mimeType", "").lower()
    return next((kind for beginning, kind in KINDS if mime.startswith(beginning)), "fetch")


def _size(entry: dict[str, Any]) -> int:
    """Return the bytes on the wire; without them, those of the content."""
    response = entry["response"]
    sizes = (response.get("_transferSize"), response.get("bodySize"), response.get("content", {}).get("size"))
    return next((size for size in sizes if size is not None and size > 0), 0)


def _parent(entry: dict[str, Any], kind: Kind, places: dict[str, int], objects: list[Object]) -> int:
    """Return the place of what asked for an object, as far as `files` can make a browser repeat it."""
    initiator = entry.get("_initiator") or {}
    frames = (initiator.get("stack") or {}).get("callFrames") or [{}]
    parent = places.get(initiator.get("url") or frames[0].get("url") or "", 0)
    if kind == "style" or objects[parent].kind not in ("document", "script"):
        return 0
    return parent
