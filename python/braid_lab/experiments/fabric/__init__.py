"""Experiments with the fabric: one flow over several paths of a network of switches."""
