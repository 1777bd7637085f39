"""Networks of OpenFlow switches for the lab: made-up switches, Open vSwitch, and the shapes they are wired in."""
