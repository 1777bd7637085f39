"""Tables for edges, their authentication, and their packet counters."""
