"""Conversations: a chat over a WebSocket, a SIP call, a WebRTC data channel."""

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

#: Ports that receive sound, at the callee and at the caller.
CALLED_SOUND_PORT, CALLER_SOUND_PORT = 6000, 10000

#: 20 s of G.711.
SOUND_BYTES = 160_000


class WebSocket(Program):
    """A chat: a message ten times a second, and its echo."""

    name = "websocket"

    def serve(self, env: ProgramEnv) -> None:
        """Start the echo server."""
        env.serve("websocket-server", [sys.executable, "-m", "braid_lab.servers.websocket", env.server])

    def begin(self, env: ProgramEnv) -> Session:
        """Start the chat."""
        return TimestampingClient(env.start_module("websocket", env.server))


class WebRtc(Program):
    """A data channel over DTLS and SCTP: a message ten times a second, and its echo."""

    name = "webrtc"

    def serve(self, env: ProgramEnv) -> None:
        """Start the echo server."""
        env.serve("webrtc-server", [sys.executable, "-m", "braid_lab.servers.webrtc", env.server])

    def begin(self, env: ProgramEnv) -> Session:
        """Open the channel and exchange messages."""
        return TimestampingClient(env.start_module("webrtc", env.server, env.source()))


@dataclass
class Call(TimestampingClient):
    """A call whose client does not report what it receives; a sniffer does."""

    ear: Process

    def __post_init__(self) -> None:
        """Skip sound of an earlier call."""
        self._read = self.ear.out.stat().st_size

    def arrived(self) -> list[float]:
        """Read the sniffer's new output."""
        return self.new_moments(self.ear.out)


class Sip(Program):
    """A call with sipp: sound is sent 50 times a second and returned, and SIP keeps the call up."""

    name = "sip"

    def __init__(self) -> None:
        """No sniffer runs yet."""
        self._ears: dict[Path, Process] = {}

    def missing(self) -> str | None:
        """Requires sipp."""
        return not_found("sipp")

    def serve(self, env: ProgramEnv) -> None:
        """Start the callee, and a sniffer of the caller's incoming sound."""
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
