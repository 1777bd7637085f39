"""Experiments on the link emulator."""
