"""Experiments on kernel support."""
