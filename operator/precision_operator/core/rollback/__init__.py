"""What calls for a rollback, how far it reaches, and how it is carried out: whole, by batches, by canary, alone."""
