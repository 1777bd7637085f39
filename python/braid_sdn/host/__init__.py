"""Balance of a host over its uplinks by Open vSwitch, by the slot tables of the daemon."""
