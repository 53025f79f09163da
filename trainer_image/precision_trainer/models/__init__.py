"""Models the trainer ships with."""
