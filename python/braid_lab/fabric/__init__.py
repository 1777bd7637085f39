"""OpenFlow networks for the lab: fake switches, Open vSwitch, and the shapes in which they are wired."""
