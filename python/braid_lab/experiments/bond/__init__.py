"""One flow over all uplinks through a hub, compared with kernel MPTCP and the best uplink alone."""
