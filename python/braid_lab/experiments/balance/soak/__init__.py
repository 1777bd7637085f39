"""`balance/soak`: everything changes all the time, and nobody may notice."""
