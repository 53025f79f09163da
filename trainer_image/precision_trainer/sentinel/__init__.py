"""Watches training in low precision and moves it, step by step, towards FP32: docs/sentinel.md.

``levels``, ``machine``, ``signals`` and ``detectors`` are pure: numbers in, values out, no torch. The rest is the thin shell
that reads the numbers off the device and carries a decision out.
"""
