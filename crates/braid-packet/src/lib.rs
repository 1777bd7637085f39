//! Views over other people's bytes: Ethernet, IP, TCP, UDP, ICMP, and incremental checksums.
