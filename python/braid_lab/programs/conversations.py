"""Conversations: a chat over a WebSocket, a call by SIP, a channel of WebRTC."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import jinja2

from braid_lab.process import Process
from braid_lab.programs.session import Program, ProgramEnv, Session, TimestampingClient, not_found
from braid_lab.report import TEMPLATES
from braid_lab.servers.catalog import random_file

SIP_PORT, CALLER_PORT = 5060, 5061

#: Ports on which sound comes in, at the called and at the caller.
CALLED_SOUND_PORT, CALLER_SOUND_PORT = 6000, 10000

#: G.711: 20 s of it.
SOUND_BYTES = 160_000


class WebSocket(Program):
    """A chat: a message ten times a second, and its echo."""

    name = "websocket"

    def serve(self, env: ProgramEnv) -> None:
        """Start the far end."""
        env.serve("websocket-server", [sys.executable, "-m", "braid_lab.servers.websocket", env.server])

    def begin(self, env: ProgramEnv) -> Session:
        """Chat."""
        return TimestampingClient(env.start_module("websocket", env.server))


class WebRtc(Program):
    """A data channel over DTLS and SCTP: a message ten times a second, and its echo."""

    name = "webrtc"

    def serve(self, env: ProgramEnv) -> None:
        """Start the far end."""
        env.serve("webrtc-server", [sys.executable, "-m", "braid_lab.servers.webrtc", env.server])

    def begin(self, env: ProgramEnv) -> Session:
        """Call it and talk."""
        return TimestampingClient(env.start_module("webrtc", env.server, env.source()))


@dataclass
class Call(TimestampingClient):
    """A call that does not tell what it hears; somebody else overhears it."""

    ear: Process

    def __post_init__(self) -> None:
        """Forget sound that was heard before: it is another call's."""
        self._read = self.ear.out.stat().st_size

    def arrived(self) -> list[float]:
        """Read what was overheard since."""
        return self.new_moments(self.ear.out)


class Sip(Program):
    """A call of sipp's: sound goes out 50 times a second and is sent back, and the call is kept up by SIP."""

    name = "sip"

    def __init__(self) -> None:
        """Nobody listens yet."""
        self._ears: dict[Path, Process] = {}

    def missing(self) -> str | None:
        """It takes sipp."""
        return not_found("sipp")

    def serve(self, env: ProgramEnv) -> None:
        """Start the called, and what overhears the caller's sound."""
        random_file(env.folder / "sound.raw", SOUND_BYTES)
        for name in ("caller", "called"):
            scenario = jinja2.Template((TEMPLATES / f"sip-{name}.xml.j2").read_text())
            _scenario(env, name).write_text(scenario.render(sound=env.folder / "sound.raw"))
        words = _sipp(env, "called", env.server, SIP_PORT, CALLED_SOUND_PORT)
        env.serve("called", [*words, "-rtp_echo"], udp_port=SIP_PORT)
        ear = env.start_module("udp_sniffer", CALLER_SOUND_PORT)
        env.net.stack.callback(ear.stop)
        ear.wait_output("^ready$")
        self._ears[env.folder] = ear

    def begin(self, env: ProgramEnv) -> Session:
        """Call."""
        words = _sipp(env, "caller", env.source(), CALLER_PORT, CALLER_SOUND_PORT)
        return Call(env.start("caller", [*words, "-m", "1", f"{env.server}:{SIP_PORT}"]), self._ears[env.folder])


def _scenario(env: ProgramEnv, name: str) -> Path:
    return env.folder / f"{name}.xml"


def _sipp(env: ProgramEnv, scenario: str, address: str, port: int, sound_port: int) -> list[str | Path]:
    media = ["-mi", address, "-mp", str(sound_port)]
    return ["sipp", "-sf", _scenario(env, scenario), "-i", address, "-p", str(port), *media, "-nostdin"]
