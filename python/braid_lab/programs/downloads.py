"""Downloads of minutes and of seconds: git over HTTP, apt from a mirror, FTP."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from braid_lab.process import run
from braid_lab.programs.session import RATE, Download, Program, ProgramEnv, Session, not_found
from braid_lab.servers import vsftpd
from braid_lab.servers.catalog import HTTP_PORT, random_file

#: Length of an apt round relative to the others: each fetches the index and a package, over new connections.
APT_SHARE = 0.3


def _web(env: ProgramEnv) -> Path:
    """Serve a folder over HTTP at a limited rate, with git repositories below it; return the folder."""
    shared = env.folder / "web"
    shared.mkdir()
    env.serve("web", [sys.executable, "-m", "braid_lab.servers.web", env.server, str(shared), str(RATE)])
    return shared


class Git(Program):
    """Clones a repository."""

    name = "git"

    def serve(self, env: ProgramEnv) -> None:
        """Create a repository, and serve it with git's own `http-backend`."""
        shared = _web(env)
        work = env.folder / "work"
        git: list[str | Path] = ["git", "-C", work, "-c", "user.name=lab", "-c", "user.email=lab@lab.invalid"]
        run(["git", "init", "--quiet", work])
        random_file(work / "file", env.size)
        run([*git, "add", "file"])
        run([*git, "commit", "--quiet", "--message", "a file"])
        run(["git", "clone", "--quiet", "--bare", work, shared / "repository.git"])

    def begin(self, env: ProgramEnv) -> Session:
        """Clone it; git itself checks the data."""
        got = env.empty("got") / "clone.git"
        url = f"http://{env.server}/repository.git"
        process = env.start("git", ["git", "-c", "http.proxy=", "clone", "--bare", url, got])
        return Download(process, got / "objects" / "pack")


class Apt(Program):
    """Fetches a mirror's index and a package, repeatedly."""

    name = "apt"

    def missing(self) -> str | None:
        """Requires apt, and the tools that build packages."""
        return not_found("apt-get", "dpkg-deb")

    def serve(self, env: ProgramEnv) -> None:
        """Create a mirror with one package."""
        shared = _web(env)
        content = env.folder / "package"
        (content / "DEBIAN").mkdir(parents=True)
        words = {
            "Package": "firstweek",
            "Version": "1",
            "Architecture": "all",
            "Maintainer": "lab <lab@lab.invalid>",
            "Description": "a file",
        }
        control = "".join(f"{word}: {value}\n" for word, value in words.items())
        (content / "DEBIAN" / "control").write_text(control)
        random_file(content / "file", round(APT_SHARE * env.size))
        made = shared / "firstweek.deb"
        run(["dpkg-deb", "--build", "-Znone", "--root-owner-group", content, made])
        digest = hashlib.sha256(made.read_bytes()).hexdigest()
        listed = f"{control}Filename: ./{made.name}\nSize: {made.stat().st_size}\nSHA256: {digest}\n"
        (shared / "Packages").write_text(listed)

    def begin(self, env: ProgramEnv) -> Session:
        """Update, and fetch the package as an upgrade would; apt itself checks the data."""
        root = env.empty("root")
        for folder in ("state/lists/partial", "cache/archives/partial", "etc/preferences.d"):
            (root / folder).mkdir(parents=True)
        (root / "status").touch()
        (root / "sources.list").write_text(f"deb [trusted=yes] http://{env.server}:{HTTP_PORT}/ ./\n")
        settings = {
            "Dir::State": root / "state",
            "Dir::State::status": root / "status",
            "Dir::Cache": root / "cache",
            "Dir::Etc": root / "etc",
            "Dir::Etc::sourcelist": root / "sources.list",
            "Dir::Log": root,
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Acquire::http::Proxy": "DIRECT",
        }
        file = root / "apt.conf"
        file.write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
        both = "apt-get --quiet update && exec apt-get --quiet --yes --download-only install firstweek"
        process = env.start("apt", ["sh", "-c", both], env={"APT_CONFIG": str(file)})
        return Download(process, root / "cache" / "archives" / "partial")


class Ftp(Program):
    """Fetches a file by FTP in passive mode: one connection for commands, another for data."""

    name = "ftp"

    def missing(self) -> str | None:
        """Requires curl and vsftpd."""
        return not_found("curl") or (
            None if vsftpd.program().exists() else "vsftpd is not unpacked (tools/setup bench)"
        )

    def serve(self, env: ProgramEnv) -> None:
        """Start vsftpd."""
        asked = vsftpd.prepare(env.folder, env.server, rate=RATE) / "asked"
        random_file(asked, env.size)
        asked.chmod(0o644)
        env.serve("vsftpd", vsftpd.argv(env.folder), port=vsftpd.PORT)

    def begin(self, env: ProgramEnv) -> Session:
        """Fetch the file."""
        got = env.empty("got")
        url = f"ftp://{env.server}/asked"
        words: list[str | Path] = [
            "--noproxy",
            "*",
            "--fail",
            "--silent",
            "--show-error",
            "--output",
            got / "asked",
            url,
        ]
        return Download(env.start("curl", ["curl", *words]), got, (env.folder / "files" / "asked", got / "asked"))
