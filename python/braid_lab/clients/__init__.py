"""Clients for the lab's traffic. Each is a program that prints JSON or lines for its caller."""
