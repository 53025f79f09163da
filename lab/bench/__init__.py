"""Benchmarks: the product against its budgets, on real parts."""
