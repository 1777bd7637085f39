"""Balance by Open vSwitch and OpenFlow."""
