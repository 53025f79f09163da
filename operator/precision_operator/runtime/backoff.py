"""How long to wait before the next try."""

from dataclasses import dataclass

_MOST_DOUBLINGS = 60
"""More would not fit into a float's exponent for long, and the limit was met before."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Twice as long after each failure, up to a limit."""

    first_seconds: float
    limit_seconds: float

    def seconds(self, failures: int) -> float:
        """After so many failures before this one."""
        return min(self.limit_seconds, self.first_seconds * 2.0 ** min(failures, _MOST_DOUBLINGS))
