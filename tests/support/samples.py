"""Samples of a vector, in a word each."""

from __future__ import annotations

from precision_operator.signals.port import Labels, Sample


def sample(pod: str, value: float = 1.0, **labels: str) -> Sample:
    """The pod's; with other labels of the series, of those that are read."""
    return Sample(Labels(pod=pod, **labels), value)
