"""Planning: paths, shares and tags for the network as it is known."""
