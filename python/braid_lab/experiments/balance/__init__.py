"""Experiments on the flow datapath."""
