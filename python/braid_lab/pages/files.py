"""The files of a site: a browser that opens its document asks for just the objects of the corpus, in its order.

Every file is exactly as long as the corpus says, if that leaves room for its own text, and is filled up with noise
that no server compresses.
"""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from braid_lab.pages.corpus import Kind, Object, Site

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: Width and height of every image, which it also has on the page.
IMAGE_PIXELS = 160, 90
#: A chunk that readers of PNG pass over (its name begins with a small letter).
FILLING_CHUNK = b"noIs"

#: Loads what a script asks for. Images and scripts delay the page's load event, and fetches do not.
LOADER = """
(() => {
  const insert = ({kind, url}) => {
    const made = document.createElement(kind === "image" ? "img" : "script");
    made.src = url;
    document.body.append(made);
  };
  for (const child of CHILDREN) {
    if (child.kind === "fetch") {
      fetch(child.url).then((answer) => answer.arrayBuffer()).then(() => child.children.forEach(insert));
    } else {
      insert(child);
    }
  }
})();
"""

TEXT = "<p>A page of the lab, with a few words that a reader sees before the pictures are there.</p>"


def write(site: Site, folder: Path) -> None:
    """Write a site's files to FOLDER/HOST/PATH."""
    generator = random.Random(f"files {site.name}")
    for number, each in enumerate(site.objects):
        path = "/index.html" if each.path == "/" else each.path
        file = folder / each.host / path.removeprefix("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body(site, number, generator))


def body(site: Site, number: int, generator: random.Random) -> bytes:
    """Return an object's content."""
    each = site.objects[number]
    children = [(child, site.objects[child]) for child in site.children(number)]
    write_kind: dict[Kind, Callable[[], bytes]] = {
        "document": lambda: _document(site.name, [child for _, child in children], each.size, generator),
        "style": lambda: _commented(b"body { margin: 1em; }\n", each.size, generator),
        "script": lambda: _script(site, children, each.size, generator),
        "image": lambda: _image(each.size, generator),
        "fetch": lambda: generator.randbytes(each.size),
    }
    return write_kind[each.kind]()


def _noise(size: int, generator: random.Random) -> bytes:
    """Return printable noise."""
    return base64.b64encode(generator.randbytes(3 * size // 4 + 3), altchars=b"__")[:size] if size > 0 else b""


def _commented(text: bytes, size: int, generator: random.Random) -> bytes:
    """Fill a style sheet or a script up with a comment."""
    return text + b"/*" + _noise(size - len(text) - 4, generator) + b"*/"


def _document(title: str, children: Sequence[Object], size: int, generator: random.Random) -> bytes:
    """Return a document: styles and scripts in its head, images in its body, between them text."""
    width, height = IMAGE_PIXELS
    styles = [f'<link rel="stylesheet" href="{each.url}">' for each in children if each.kind == "style"]
    scripts = [f'<script async src="{each.url}"></script>' for each in children if each.kind == "script"]
    images = [
        f'<img src="{each.url}" width="{width}" height="{height}" alt="">'
        for each in children
        if each.kind == "image"
    ]
    head = ['<!doctype html><html lang="en"><meta charset="utf-8">', f"<title>{title}</title>", *styles, *scripts]
    start = "\n".join([*head, "<body>", f"<h1>{title}</h1>", TEXT, ""]).encode()
    rest = "\n".join(images).encode()
    return start + rest + b"<!--" + _noise(size - len(start) - len(rest) - 7, generator) + b"-->"


def _script(site: Site, children: Sequence[tuple[int, Object]], size: int, generator: random.Random) -> bytes:
    told = [
        {
            "kind": child.kind,
            "url": child.url,
            "children": [
                {"kind": site.objects[each].kind, "url": site.objects[each].url} for each in site.children(number)
            ],
        }
        for number, child in children
    ]
    text = LOADER.replace("CHILDREN", json.dumps(told)).encode() if told else b""
    return _commented(text, size, generator)


def _image(size: int, generator: random.Random) -> bytes:
    """Return a PNG in one colour."""
    width, height = IMAGE_PIXELS
    header = struct.pack("!2I5B", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress((b"\0" + bytes([generator.randrange(256)]) * width) * height)
    around = _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels)
    end = _chunk(b"IEND", b"")
    room = size - len(PNG_SIGNATURE + around + end) - 12
    filling = _chunk(FILLING_CHUNK, generator.randbytes(room)) if room >= 0 else b""
    return PNG_SIGNATURE + around + filling + end


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + name + data + struct.pack("!I", zlib.crc32(name + data))
