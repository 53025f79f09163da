"""The world of the property tests: the one that the model explorer uses too."""

from lab.model.world import GOOD, World

__all__ = ["GOOD", "World"]
