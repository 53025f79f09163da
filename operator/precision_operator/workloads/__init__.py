"""Identity of a pod's workload. Pure: may import api and the contract, nothing else."""
