"""What the ranks of one job do together: launch, rendezvous, process group, DDP, agreement on a request."""
