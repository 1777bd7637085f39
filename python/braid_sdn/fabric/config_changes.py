"""Keys of the configuration whose values differ between two readings of it, by whether they take a restart.

Pure: two configurations in, keys out, as a person writes them in the file.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from braid_sdn.fabric.config import Config
from braid_sdn.fabric.settings import Settings

#: Tables and keys by the settings that are made of them; `[paths]` has those of `limits` by their names.
_KEYS = {
    "names": "switch",
    "edges": "edge",
    "links": "link",
    "hosts": "host",
    "acl": "acl",
    "host_lifetime": "host_lifetime",
    "failover": "failover",
    "flood": "flood",
    "tenants": "tenant",
    "scheduler": "paths.scheduler",
    "frame_bytes": "paths.frame_bytes",
}


def followed(before: Settings, after: Settings) -> list[str]:
    """Return the keys that a controller follows while it runs, in the order of the alphabet."""
    found = [key for name, key in _KEYS.items() if getattr(before, name) != getattr(after, name)]
    found += [f"paths.{name}" for name in _differing(before.limits, after.limits)]
    return sorted(found)


def restarting(before: Config, after: Config) -> list[str]:
    """Return the keys that it follows after a restart alone, in the order of the alphabet."""
    found = []
    if (before.host, before.port) != (after.host, after.port):
        found.append("listen")
    if before.metrics != after.metrics:
        found.append("metrics.listen")
    if (before.has_key_file or after.has_key_file) and before.settings.key != after.settings.key:
        found.append("key_file")
    for table in ("tls", "web"):
        found += [f"{table}.{name}" for name in _differing(getattr(before, table), getattr(after, table))]
    found += [f"cluster.{name}" for name in _of_cluster(before, after)]
    return sorted(set(found))


def _of_cluster(before: Config, after: Config) -> list[str]:
    names = {"endpoints": "etcd", "prefix": "prefix", "lease": "lease"}
    one, other = before.cluster, after.cluster
    if one is None or other is None:
        present = one or other
        return ["name", "etcd"] if present is not None else []
    changed = [key for name, key in names.items() if getattr(one, name) != getattr(other, name)]
    return [*changed, *_differing(one.me, other.me), *_differing(one.tls, other.tls)]


def _differing(one: Any, other: Any) -> list[str]:
    """Return the names of fields that differ; of one that is not there, those that are not what they are without."""
    present = one if one is not None else other
    if present is None:
        return []
    return [each.name for each in fields(present) if getattr(one, each.name, None) != getattr(other, each.name, None)]
