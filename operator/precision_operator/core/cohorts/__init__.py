"""Who is moved, in which order, and how many at a step: by workloads or by pods."""
