"""The internet's servers. Each is a program of its own, run inside the internet's namespace."""
