"""The fabric controller: knows the network, chooses paths, and keeps the switches' rules as they should be."""
