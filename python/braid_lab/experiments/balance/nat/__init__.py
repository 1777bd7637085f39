"""`balance/nat`: what RFC 4787, 5382 and 5508 ask of an address translator, behaviour by behaviour."""
