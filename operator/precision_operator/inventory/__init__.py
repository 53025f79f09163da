"""What is known of the cluster from its watches: policies, assignments, workloads and their pods."""
