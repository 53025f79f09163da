"""Parts of the PromQL that is asked of trainers' series. ``$namespace`` and ``$window`` are filled in when it is sent."""


def metric(name: str, labels: str = "") -> str:
    """A trainer's series; ``labels``: more matchers, each after a comma."""
    return f'genesis_{name}{{namespace="$namespace"{labels}}}'


def increase(name: str) -> str:
    """How much a counter grew within the window."""
    return f"increase({metric(name)}[$window])"


def baseline(name: str) -> str:
    """A ratio's denominator: positive and finite, or absent."""
    return f"({metric(f'fp32_baseline_{name}')} > 0 < Inf)"


REDUCED, FP32, ON_CPU = ',mode!="fp32"', ',mode="fp32"', ',device="cpu"'
LOSS, BASELINE_LOSS = metric("training_loss"), metric("fp32_baseline_loss")

_SAMPLES = metric("training_samples_total")
SAMPLES_PER_SECOND = (
    f"((({_SAMPLES} - {_SAMPLES} offset $window) / (timestamp({_SAMPLES}) - timestamp({_SAMPLES} offset $window)))"
    f" unless (resets({_SAMPLES}[$window]) > 0))"
)
"""Between two samples that were scraped, a window apart, over the time that lay between these.

``rate`` divides by the whole window, so that it takes a pod younger than the window, or a gap in the scrapes, for slowness.
Absent for such a pod, and for one whose counter began anew.
"""
