"""The decision function explored as a model, and the tests judged by mutants of it.

``explore`` runs the shipped ``decide`` under every sequence of events that a small world allows; ``mutate`` breaks the
shipped code in one place at a time and asks whether the tests and the explorer notice. See docs/verification.md.
"""
