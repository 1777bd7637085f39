"""A clip that the lab encodes itself, and a DASH player (dash.js) that plays it in a browser's second window.

ffmpeg makes a moving test picture with noise in it, so that the encoder needs every bit that it may use.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braid_lab.process import LabError, run
from braid_lab.product import repository
from braid_lab.programs.devtools import Tab

HOST = "www.video.test"

#: Rates of the qualities, Mbit/s: [host] §5.2.2 "encoded at a rate of 1 Mbps"; two lower ones to fall back to.
QUALITIES = (0.4, 0.7, 1.0)
SEGMENT_SECONDS = 2
FRAMES_PER_SECOND = 24

#: Playing time ahead with which dash.js pauses between segments: its `bufferTimeAtTopQuality`, by default.
FULL_SECONDS = 30.0

PLAYER = "dash.all.min.js"

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>A clip of the lab</title>
<video id="video" muted width="640" height="360"></video>
<script src="/dash.all.min.js"></script>
<script>
  const told = {bytes: 0, switches: 0, stalls: 0, stalled_s: 0, started: null, ended: false, errors: []};
  // The player tells of whole segments alone, each of two seconds.
  const send = XMLHttpRequest.prototype.send;
  XMLHttpRequest.prototype.send = function (...body) {
    let had = 0;
    this.addEventListener("progress", ({loaded}) => {
      told.bytes += loaded - had;
      had = loaded;
    });
    return send.apply(this, body);
  };
  const video = document.querySelector("#video");
  const player = dashjs.MediaPlayer().create();
  let stalledAt = null, quality = null;
  const over = () => {
    if (stalledAt !== null) told.stalled_s += (performance.now() - stalledAt) / 1000;
    stalledAt = null;
  };
  player.on("qualityChangeRendered", (change) => {
    const now = change.newRepresentation ? change.newRepresentation.bandwidth : change.newQuality;
    if (quality !== null && now !== quality) told.switches += 1;
    quality = now;
  });
  player.on("error", (what) => told.errors.push(String(what.error && what.error.message)));
  video.addEventListener("playing", () => { told.started ??= performance.now() / 1000; over(); });
  video.addEventListener("waiting", () => {
    // Before the beginning and at the end a player also waits.
    if (told.started === null || video.currentTime > video.duration - 0.5) return;
    told.stalls += 1;
    stalledAt = performance.now();
  });
  video.addEventListener("ended", () => { over(); told.ended = true; });
  player.initialize(video, "/clip.mpd", true);
</script>
"""

TOLD = """JSON.stringify({
  ...told,
  played_s: video.currentTime,
  ahead_s: player.getBufferLength("video"),
  quality: player.getCurrentRepresentationForType("video").bandwidth,
  qualities: player.getRepresentationsByType("video").length,
})"""


@dataclass(frozen=True)
class Clip:
    """An encoded clip: a folder of files for HOST."""

    folder: Path
    seconds: float


@dataclass(frozen=True)
class Playback:
    """Playback until a moment."""

    #: Seconds of the clip that were shown, seconds that the player has ahead, and bytes of media that came.
    played_s: float
    ahead_s: float
    bytes: int
    #: Seconds from the navigation to the first picture.
    started_s: float
    switches: int
    stalls: int
    stalled_s: float
    #: Rate of the quality at the end, bit/s.
    quality: float


def encode(folder: Path, seconds: float) -> Clip:
    """Encode a clip in all qualities into a new folder, with its player beside it."""
    player = repository() / ".tools/dash/node_modules/dashjs/dist/modern/umd" / PLAYER
    for need, what in ((shutil.which("ffmpeg"), "ffmpeg not found"), (player.exists(), f"{player} does not exist")):
        if not need:
            raise LabError(f"{what}: run tools/setup bench")
    folder.mkdir(parents=True)
    group = str(SEGMENT_SECONDS * FRAMES_PER_SECOND)
    source = f"testsrc2=size=640x360:rate={FRAMES_PER_SECOND}:duration={seconds:g},noise=alls=30:allf=t"
    words = ["-f", "lavfi", "-i", source, *["-map", "0:v"] * len(QUALITIES)]
    words += ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-threads", "2"]
    words += ["-g", group, "-keyint_min", group, "-sc_threshold", "0"]
    for number, mbit in enumerate(QUALITIES):
        rate = f"{1000 * mbit:.0f}k"
        words += [f"-b:v:{number}", rate, f"-maxrate:v:{number}", rate, f"-bufsize:v:{number}", rate]
    # One set of qualities, among which a player chooses; by default each would be a set of its own.
    words += ["-adaptation_sets", "id=0,streams=v"]
    words += ["-f", "dash", "-seg_duration", str(SEGMENT_SECONDS), "-use_timeline", "1", "-use_template", "1"]
    argv: list[str | Path] = ["nice", "ffmpeg", "-loglevel", "error", "-nostdin", *words, folder / "clip.mpd"]
    run(argv, timeout=60 + 4 * seconds)
    shutil.copy(player, folder / PLAYER)
    (folder / "index.html").write_text(PAGE)
    return Clip(folder, seconds)


def begin(tab: Tab) -> None:
    """Open the player, and wait until the clip plays."""
    tab.call("Page.navigate", url=f"https://{HOST}/")
    tab.wait("typeof told !== 'undefined' && told.started !== null", timeout=30.0)


def await_pause(tab: Tab) -> None:
    """Wait until the player has as much ahead as it wants."""
    full = FULL_SECONDS - SEGMENT_SECONDS
    tab.wait(f"player.getBufferLength('video') >= {full:g}", timeout=4 * FULL_SECONDS)


def playback(tab: Tab) -> Playback:
    """Ask the player; LabError if it has failed."""
    told: dict[str, Any] = json.loads(tab.evaluate(TOLD))
    if told["errors"]:
        raise LabError(f"the player failed: {', '.join(told['errors'])}")
    if told["qualities"] != len(QUALITIES):
        raise LabError(f"the player sees {told['qualities']} qualities in place of {len(QUALITIES)}")
    keys = ("played_s", "ahead_s", "bytes", "switches", "stalls", "stalled_s", "quality")
    return Playback(**{key: told[key] or 0 for key in keys}, started_s=told["started"])
