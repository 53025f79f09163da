"""What the ranks of one job do together: rendezvous, agreement on a request, launch."""
