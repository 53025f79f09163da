"""A training state as files: format, checks, reading and writing."""
