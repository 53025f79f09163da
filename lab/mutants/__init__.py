"""Judges the tests of what decides by mutants: one small wrong thing at a time, and who notices.

operators: what can be made wrong; judges: the tests and the explorer; infection: which mutants each of them can notice;
code: a loaded module gets that of a mutant; run: a seeded sample, each in a forked process; typed: what mypy refuses.
"""
