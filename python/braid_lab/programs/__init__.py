"""Everyday programs, each as a client in one namespace and a server in another."""
