"""The experiments, one folder per subject; each module registers its own."""
