"""`balance/soak`: constant faults and changes that no user may notice."""
