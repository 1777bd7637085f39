"""`balance/nat`: the requirements of RFC 4787, 5382 and 5508 for address translators, one by one."""
