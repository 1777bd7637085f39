"""IP packets byte by byte: built, parsed, checked, and exchanged with a kernel over a TAP device.

For packets that sockets cannot send or receive: a fragment without its first one, a TCP flag that no stack sends, the
checksum inside an ICMP error. Small on purpose: it has only what the experiments on the flow datapath need.
"""
