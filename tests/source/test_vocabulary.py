"""A new word in a public name is either a plain one or explained in the glossary.

`plain_words.txt` has the words of public types and of the API that need no explanation. A name with a new word fails
here until somebody has decided where the word belongs; a word that no name uses any more fails too.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLAIN = ROOT / "tests/source/plain_words.txt"
TYPE = re.compile(r"^\s*pub (?:struct|enum|trait|type|union) (\w+)", re.MULTILINE)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def words(text: str) -> set[str]:
    return {word.lower() for word in WORD.findall(text)}


def properties(schema: Any) -> Iterator[str]:
    """Yield the names of all properties in a JSON schema."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "properties" and isinstance(value, dict):
                yield from value
            yield from properties(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from properties(value)


def public() -> dict[str, str]:
    """Return each word of public names with one name that has it."""
    names = [name for file in sorted(ROOT.glob("crates/*/src/**/*.rs")) for name in TYPE.findall(file.read_text())]
    names += properties(json.loads((ROOT / "docs/api.schema.json").read_text()))
    return {word: name for name in names for word in words(name)}


def explained() -> set[str]:
    return words((ROOT / "docs/glossary.md").read_text())


def test_new_words_are_plain_or_explained() -> None:
    known = explained() | set(PLAIN.read_text().split())
    new = {word: name for word, name in public().items() if word not in known}
    assert not new, "explain these words in docs/glossary.md, or add them to tests/source/plain_words.txt"


def test_plain_words_are_used() -> None:
    used = public()
    assert not [word for word in PLAIN.read_text().split() if word not in used]
