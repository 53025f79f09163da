"""Which pods may be taken away now, for workloads that only a restart moves."""
