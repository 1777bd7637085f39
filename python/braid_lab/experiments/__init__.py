"""The experiments, one folder per subject; each module registers what it offers."""
