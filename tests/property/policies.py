"""The policies of the property tests: those that the model explorer uses too."""

from lab.model.policies import FAST, policy

__all__ = ["FAST", "policy"]
