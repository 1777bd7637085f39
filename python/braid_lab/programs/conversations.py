"""Conversations: a chat over a WebSocket, a call by SIP, a channel of WebRTC."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import jinja2

from braid_lab.process import Process
from braid_lab.programs.session import Place, Program, Session, Telling, not_found
from braid_lab.report import TEMPLATES
from braid_lab.serve.servers import random_file

SIP_PORT, CALLER_PORT = 5060, 5061

#: Ports on which sound comes in, at the called and at the caller.
CALLED_SOUND_PORT, CALLER_SOUND_PORT = 6000, 10000

#: G.711: 20 s of it.
SOUND_BYTES = 160_000


class WebSocket(Program):
    """A chat: a message ten times a second, and its echo."""

    name = "websocket"

    def serve(self, place: Place) -> None:
        """Start the far end."""
        place.serve("websocket-server", [sys.executable, "-m", "braid_lab.serve.websocket", place.server])

    def begin(self, place: Place) -> Session:
        """Chat."""
        return Telling(place.start_module("websocket", place.server))


class WebRtc(Program):
    """A data channel over DTLS and SCTP: a message ten times a second, and its echo."""

    name = "webrtc"

    def serve(self, place: Place) -> None:
        """Start the far end."""
        place.serve("webrtc-server", [sys.executable, "-m", "braid_lab.serve.webrtc", place.server])

    def begin(self, place: Place) -> Session:
        """Call it and talk."""
        return Telling(place.start_module("webrtc", place.server, place.source()))


@dataclass
class Call(Telling):
    """A call that does not tell what it hears; somebody else overhears it."""

    ear: Process

    def __post_init__(self) -> None:
        """Forget sound that was heard before: it is another call's."""
        self._read = self.ear.out.stat().st_size

    def arrived(self) -> list[float]:
        """Read what was overheard since."""
        return self.heard(self.ear.out)


class Sip(Program):
    """A call of sipp's: sound goes out 50 times a second and is sent back, and the call is kept up by SIP."""

    name = "sip"

    def __init__(self) -> None:
        """Nobody listens yet."""
        self._ears: dict[Path, Process] = {}

    def missing(self) -> str | None:
        """It takes sipp."""
        return not_found("sipp")

    def serve(self, place: Place) -> None:
        """Start the called, and what overhears the caller's sound."""
        random_file(place.folder / "sound.raw", SOUND_BYTES)
        for name in ("caller", "called"):
            scenario = jinja2.Template((TEMPLATES / f"sip-{name}.xml.j2").read_text())
            _scenario(place, name).write_text(scenario.render(sound=place.folder / "sound.raw"))
        words = _sipp(place, "called", place.server, SIP_PORT, CALLED_SOUND_PORT)
        place.serve("called", [*words, "-rtp_echo"], udp_port=SIP_PORT)
        ear = place.start_module("datagrams", CALLER_SOUND_PORT)
        place.net.stack.callback(ear.stop)
        ear.wait_output("^ready$")
        self._ears[place.folder] = ear

    def begin(self, place: Place) -> Session:
        """Call."""
        words = _sipp(place, "caller", place.source(), CALLER_PORT, CALLER_SOUND_PORT)
        return Call(
            place.start("caller", [*words, "-m", "1", f"{place.server}:{SIP_PORT}"]), self._ears[place.folder]
        )


def _scenario(place: Place, name: str) -> Path:
    return place.folder / f"{name}.xml"


def _sipp(place: Place, scenario: str, address: str, port: int, sound_port: int) -> list[str | Path]:
    media = ["-mi", address, "-mp", str(sound_port)]
    return ["sipp", "-sf", _scenario(place, scenario), "-i", address, "-p", str(port), *media, "-nostdin"]
