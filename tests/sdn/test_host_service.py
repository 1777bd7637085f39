"""The lock of a bridge's controller."""

from pathlib import Path

import pytest

from braid_sdn.host.service import AlreadyRunsError, claim


@pytest.mark.parametrize("earlier", [None, 0o644])
def test_only_its_user_can_open_the_lock_and_so_lock_it(tmp_path: Path, earlier: int | None) -> None:
    path = tmp_path / "openflow.lock"
    if earlier is not None:
        path.touch(earlier)
    with claim(path):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(AlreadyRunsError):
            claim(path)
    claim(path).close()
