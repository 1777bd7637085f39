"""Figures of */firstweek, and its running of sessions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from braid_lab.experiments.firstweek import sessions
from braid_lab.experiments.firstweek.figures import FaultEvent, Gap, cause, gaps, longest
from braid_lab.experiments.firstweek.sessions import SessionLog, sessions_running
from braid_lab.net.topology import UplinkSpec, network
from braid_lab.process import LabError, Process
from braid_lab.programs.browser import Browsing
from braid_lab.programs.downloads import Git
from braid_lab.programs.session import Download, Program, ProgramEnv, Session, TimestampingClient

FLAP = FaultEvent("route flaps", "dsl", 10.0, 10.2)
CRASH = FaultEvent("daemon killed", "", 13.0, 15.0)

WAIT_S = 20.0


def test_gaps_lie_between_arrivals_and_the_bounds() -> None:
    assert gaps([0.5, 2.0, 1.5, 9.0], 1.0, 5.0) == [Gap(1.0, 0.5), Gap(1.5, 0.5), Gap(2.0, 3.0)]
    assert longest(gaps([], 1.0, 5.0)) == Gap(1.0, 4.0)


@pytest.mark.parametrize(
    ("began", "ended", "expected"),
    [
        pytest.param(9.9, 10.5, FLAP, id="it began a little before"),
        pytest.param(10.1, 14.0, FLAP, id="the first of two"),
        pytest.param(12.0, 12.9, FLAP, id="what is over can still be felt"),
        pytest.param(14.0, 14.5, CRASH, id="in the middle of it"),
        pytest.param(21.0, 22.0, None, id="long after"),
        pytest.param(8.0, 9.0, None, id="before all"),
    ],
)
def test_a_gap_goes_back_to_a_trouble(began: float, ended: float, expected: FaultEvent | None) -> None:
    assert cause(began, ended, [FLAP, CRASH]) == expected


class Scripted(Program):
    """A client that runs a shell script."""

    name = "scripted"

    def __init__(self, folder: Path, script: str, session: Callable[[Process], Session] = TimestampingClient) -> None:
        self._argv, self._folder, self._session = ["sh", "-c", script], folder, session

    def serve(self, env: ProgramEnv) -> None:
        """Needs no server."""

    def begin(self, _: ProgramEnv) -> Session:
        return self._session(Process(self._argv, log=self._folder / "client"))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SessionLog]:
    monkeypatch.setattr(sessions, "RESTART_SECONDS", 0.0)

    def make(script: str, session: Callable[[Process], Session] = TimestampingClient) -> SessionLog:
        # None of these has a network.
        return SessionLog(Scripted(tmp_path, script, session), None)  # type: ignore[arg-type]

    return make


def look_until(log: SessionLog, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    try:
        while not condition():
            assert time.monotonic() < deadline, log
            log.look()
    finally:
        log.stop()


def test_a_session_that_ends_by_itself_is_broken_and_followed_by_another(log: Callable[..., SessionLog]) -> None:
    typed = log("echo 1.5; echo nonsense; echo 2.5; echo 'reset by peer' >&2; exit 3")
    look_until(typed, lambda: len(typed.broken) == 2)
    assert typed.moments[:2] == [1.5, 2.5]
    assert typed.broken[0].reason == "exit status 3: reset by peer"
    assert typed.sessions == 2


def test_a_session_in_which_nothing_arrives_is_given_up(
    log: Callable[..., SessionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SESSION_TIMEOUT_SECONDS", 0.2)
    silent = log("echo 1.5; exec sleep 60")
    look_until(silent, lambda: bool(silent.broken))
    assert silent.broken[0].reason == "nothing arrived for 0.2 s"


def test_a_file_that_differs_is_a_broken_session(log: Callable[..., SessionLog], tmp_path: Path) -> None:
    got, asked = tmp_path / "got", tmp_path / "asked"
    got.mkdir()
    asked.write_text("right")

    def session(process: Process) -> Session:
        return Download(process, got, (asked, got / "file"))

    wrong = log(f"printf wrong >{got}/file", session)
    look_until(wrong, lambda: bool(wrong.broken))
    assert wrong.broken[0].reason == "the file that came differs from the server's"
    right = log(f"printf right >{got}/file", session)
    look_until(right, lambda: right.sessions == 3)
    assert right.broken == []


def test_a_page_complains_of_requests_that_failed_and_of_another_protocol(log: Callable[..., SessionLog]) -> None:
    wall = time.time()
    console = [f"arrived {wall}", "over h2", "broken TypeError: Failed to fetch", "over http/1.1"]
    lines = "".join(f"""echo '[1:INFO:CONSOLE:2] "{line}", source: x (2)' >&2;""" for line in console)
    page = log(f"{lines} exec sleep 60", lambda process: Browsing(process, "h2"))
    look_until(page, lambda: len(page.broken) == 2)
    assert page.moments == [pytest.approx(time.monotonic() - (time.time() - wall), abs=1.0)]
    reasons = [each.reason for each in page.broken]
    assert reasons == ["TypeError: Failed to fetch", "the browser speaks http/1.1 in place of h2"]


def test_programs_are_kept_going_until_the_end_and_a_bad_start_is_told(log: Callable[..., SessionLog]) -> None:
    good = log("while :; do date +%s.%N; sleep 0.05; done")
    with sessions_running([good]):
        assert good.moments
    assert good.broken == []
    bad = log("exit 1")
    with pytest.raises(LabError, match="scripted does not even begin: exit status 1"), sessions_running([bad]):
        pass
    with sessions_running([log("exit 1")], bad_starts=2):
        pass


def test_a_clone_over_http_arrives_bit_by_bit() -> None:
    with network([UplinkSpec("dsl")]) as net:
        folder = net.scratch / f"{net.host.name}-git"
        folder.mkdir()
        env = ProgramEnv(net, net.server(), folder, 1.0)
        git = Git()
        git.serve(env)
        log = SessionLog(git, env)
        look_until(log, lambda: log.sessions == 2)
        assert log.broken == []
        assert len(log.moments) > 3
