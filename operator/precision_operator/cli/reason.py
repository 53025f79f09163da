"""What a person is told of a reason."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guidance:
    """A reason, for a person."""

    meaning: str
    steps: tuple[str, ...] = ()
    """What to do; ``{name}`` is the policy. ``!`` stands before a verb of ours, or before kubectl. None: only wait."""


LOOK_AT_PODS = "look at the pods named above: kubectl describe, kubectl logs"
