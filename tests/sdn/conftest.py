"""Property tests on a machine that many share, where slow is not wrong; and tests of many minutes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from braid_sdn.fabric.monitor import path_monitor

settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


@pytest.fixture
def rare_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the controller probe paths rarely: most of a test of many minutes would be probes."""
    monkeypatch.setattr(path_monitor, "MAX_PROBES_PER_SECOND", 10.0)
    monkeypatch.setattr(path_monitor, "MAX_POLLS_PER_SECOND", 10.0)
