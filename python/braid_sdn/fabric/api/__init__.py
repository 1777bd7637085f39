"""The HTTP API and what it shows."""
