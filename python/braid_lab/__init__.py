"""Braid's laboratory: real programs in network namespaces, measured.

`net` builds topologies, `serve` and `load` are the two ends of the traffic, `experiments` are what
`braid lab run` runs, and `result` writes what they found. Nothing here is part of the product: the lab
talks to Braid only through its command line and its local API.
"""
