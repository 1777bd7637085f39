"""Experiments on what Braid measures of the uplinks."""
