"""The fabric controller: discovers the network, chooses paths, and maintains the switches' rules."""
