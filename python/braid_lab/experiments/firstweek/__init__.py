"""A user's first week with Braid: programs run while lines and daemons fail and recover."""
