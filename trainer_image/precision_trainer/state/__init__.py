"""What outlives a process: checkpoints and the count of runs."""
