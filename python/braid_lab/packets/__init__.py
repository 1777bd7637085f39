"""IP packets byte by byte: made, taken apart, checked, and exchanged with a kernel over a TAP device.

It is for what sockets cannot say or see: a fragment without its first one, a TCP flag that no stack sends, the
checksum inside an ICMP error. Small on purpose: only what the experiments on the flow datapath need.
"""
