"""Braid's lab: real programs in network namespaces, measured.

`net` builds topologies, `servers` and `clients` are the two ends of the traffic, `experiments` has what `braid lab
run` runs, and `experiment` writes their results. Nothing here is part of the product: the lab uses Braid only through
its command line and its local API.
"""
