"""What one optimizer step is in each precision, and how a mode changes between two of them."""
