"""Debian's nginx, as tools/setup unpacks it: where it is, and how it runs in a folder of its own."""

from __future__ import annotations

from pathlib import Path

from braid_lab.product import unpacked


def program() -> Path:
    """Return where it is unpacked."""
    return unpacked("nginx", "usr/sbin/nginx")


def command(folder: Path, http: str) -> list[str | Path]:
    """Write FOLDER/nginx.conf with these lines of its `http` block, and return the command that serves it."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"daemon off;\nuser root;\nworker_processes 1;\npid {folder}/nginx.pid;\n"
        "events {\nworker_connections 8192;\n}\n"
        f"http {{\naccess_log off;\n{folders}keepalive_timeout 1h;\nkeepalive_requests 1000000;\n{http}}}\n"
    )
    return [program(), "-e", "stderr", "-p", folder, "-c", configuration]
