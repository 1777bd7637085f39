"""`tools/release` refuses a commit that is not ready, and says what to do."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def git(tree: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *arguments], cwd=tree, check=True)


def check(tree: Path, version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["tools/release", "check", version], cwd=tree, capture_output=True, text=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a repository whose only commit can be released as 1.2.3."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/release", tmp_path / "tools/release")
    for name in ("Cargo.toml", "pyproject.toml"):
        (tmp_path / name).write_text('version = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 - 2026-01-31\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "release")
    return tmp_path


def test_a_commit_that_is_ready(tree: Path) -> None:
    done = check(tree, "1.2.3")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3-rc1"])
def test_no_version(tree: Path, version: str) -> None:
    done = check(tree, version)
    assert done.returncode == 1
    assert "run: make release VERSION=1.2.3" in done.stderr


def test_another_version(tree: Path) -> None:
    done = check(tree, "1.2.4")
    assert done.returncode == 1
    assert "Cargo.toml has version 1.2.3, not 1.2.4" in done.stderr


def test_no_date_in_the_changelog(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text("## 1.2.3 - unreleased\n")
    git(tree, "commit", "--quiet", "--all", "--message", "open")
    done = check(tree, "1.2.3")
    assert done.returncode == 1
    assert "give the section its date" in done.stderr


def test_changes_that_are_not_committed(tree: Path) -> None:
    (tree / "more").write_text("")
    done = check(tree, "1.2.3")
    assert done.returncode == 1
    assert "not committed" in done.stderr


def test_a_version_that_was_released(tree: Path) -> None:
    git(tree, "tag", "v1.2.3")
    done = check(tree, "1.2.3")
    assert done.returncode == 1
    assert "the tag v1.2.3 exists" in done.stderr
