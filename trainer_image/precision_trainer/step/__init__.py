"""One training step: autocast, loss scaling, clipping, update; and what it came to."""
