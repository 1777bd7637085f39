"""Servers of the lab's internet. Each is a program of its own, run inside the internet's namespace."""
