"""What the laboratory needs of the machine, and how it gets it."""
