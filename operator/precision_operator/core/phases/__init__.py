"""One handler a phase: what it wants of every workload, and the one edge it may take in a pass."""
