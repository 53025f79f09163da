"""Benchmarks, the analyzer and drills. They are not in the production image."""
