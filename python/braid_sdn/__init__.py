"""OpenFlow applications of Braid: `fabric` (one flow over several paths of a network of switches).

Decisions are pure: `fabric` takes the time and switches' messages as plain data, and returns messages to send. Only
`openflow` knows the protocol's bytes, and only the drivers know sockets and clocks.
"""
