"""One flow over all uplinks through a hub, held against kernel MPTCP and the best uplink alone."""
