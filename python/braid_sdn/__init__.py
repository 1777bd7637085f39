"""OpenFlow applications of Braid: `fabric` (one flow over several paths of a network of switches).

What decides is pure: `fabric` takes the time, and what switches said as plain data, and returns what to tell them.
Only `openflow` knows the protocol's bytes, and only the drivers know sockets and clocks.
"""
