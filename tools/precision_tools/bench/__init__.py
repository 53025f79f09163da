"""What the trainer costs and gains, measured in interleaved rounds, with the raw rounds beside every figure."""
