"""All programs, in display order."""

from __future__ import annotations

from braid_lab.programs.browser import Http2, Http3
from braid_lab.programs.conversations import Sip, WebRtc, WebSocket
from braid_lab.programs.downloads import Apt, Ftp, Git
from braid_lab.programs.session import Program
from braid_lab.programs.ssh import Rsync, Ssh

ALL_PROGRAMS: tuple[Program, ...] = (
    Ssh(),
    Rsync(),
    Git(),
    Apt(),
    Ftp(),
    WebSocket(),
    Sip(),
    WebRtc(),
    Http2(),
    Http3(),
)

#: Programs that only need what `tools/setup` installs.
SMALL = ("ssh", "rsync", "git", "apt", "websocket", "webrtc")
