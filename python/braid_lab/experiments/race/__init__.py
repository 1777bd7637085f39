"""The race: the SYN that returns first chooses the uplink ([ofrp])."""
