"""What is told to the outside: metrics, logs, progress."""
