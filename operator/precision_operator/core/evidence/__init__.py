"""What the metrics say of each workload: tri-state readings, and the breaches that stand."""
