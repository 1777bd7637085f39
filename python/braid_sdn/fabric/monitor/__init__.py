"""Liveness and loss of paths and edges, by probes and counters."""
