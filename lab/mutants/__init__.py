"""Judges the tests of what decides by mutants: one small wrong thing at a time, and who notices.

operators: what can be made wrong; judges: the tests and the explorer; run: a seeded sample, each in a forked process.
"""
