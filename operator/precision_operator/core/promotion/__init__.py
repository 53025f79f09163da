"""What moves a fleet up its steps, and the checks that it waits for."""
