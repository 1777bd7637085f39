"""OpenAPI documents of the local APIs, and what differs from them."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from braid_lab.product import repository

Document = dict[str, Any]


def documented(name: str) -> Document:
    """Return a document as it is in the repository."""
    document: Document = json.loads((repository() / "docs" / name).read_text())
    return document


def complaints(document: Document, schema: Document, content: Any) -> list[str]:
    """Return where an answer differs from its schema, whose references lead into the document."""
    whole = {"components": document["components"], **schema}
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(whole).iter_errors(content)]
