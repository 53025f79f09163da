"""What people are shown of a pass: conditions and the summary."""
