"""A shell on the demo's host, with the two emulated uplinks and a running `braid`."""

from __future__ import annotations

import os
import subprocess
import sys

from braid_lab.fixtures import DEMO_UPLINKS, serve_everything
from braid_lab.net.topology import Topology, network
from braid_lab.product import Braid, binary, braid

WELCOME = """\
You are on the host `{host}` with the uplinks {uplinks}; leave with `exit`, and all of it goes.
  braid status                         what braid does
  curl -o /dev/null http://{server}/bytes/10000000
  nsenter --net=/run/netns/{internet}  the internet's side
"""


def shell(*, lan_clients: int, with_braid: bool) -> None:
    """Build the network, start everything, and run the user's shell inside until it ends."""
    with network(DEMO_UPLINKS, lan_clients=lan_clients) as net:
        serve_everything(net)
        if not with_braid:
            _interact(net, Braid(net.host, net.scratch / "braid"))
            return
        with braid(net.host, net.scratch / "braid") as daemon:
            _interact(net, daemon)


def _interact(net: Topology, daemon: Braid) -> None:
    text = WELCOME.format(
        host=net.host.name, uplinks=", ".join(net.uplinks), server=net.server(), internet=net.internet.name
    )
    sys.stdout.write(text + "".join(f"  nsenter --net={client.path}  a LAN client\n" for client in net.clients))
    sys.stdout.flush()
    environment = {
        **os.environ,
        "BRAID_RUN_DIR": str(daemon.run_dir),
        "PATH": f"{binary().parent}:{os.environ.get('PATH', '/usr/bin:/bin')}",
    }
    user_shell = os.environ.get("SHELL", "/bin/sh")
    subprocess.run(["nsenter", f"--net={net.host.path}", "--", user_shell], env=environment, check=False)
