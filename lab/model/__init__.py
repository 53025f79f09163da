"""The decision function explored as a model.

The shipped ``decide`` is run under every sequence of events that a small world allows. ``lab.mutants`` asks whether the
tests and this exploration notice what is wrong in the core. See docs/verification.md.
"""
