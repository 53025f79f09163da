"""metav1 conditions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from precision_operator.api.wire import format_time, integer, parse_time, text


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; ``reason`` is the same CamelCase word as in events, metrics and logs."""

    type: str
    status: str
    """``True``, ``False`` or ``Unknown``."""
    reason: str
    message: str
    observed_generation: int = 0
    last_transition_time: float = 0.0

    def to_wire(self) -> dict[str, object]:
        """As metav1.Condition."""
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "observedGeneration": self.observed_generation,
            "lastTransitionTime": format_time(self.last_transition_time),
        }

    @staticmethod
    def from_wire(raw: Mapping[str, object]) -> "Condition":
        """Read one."""
        return Condition(
            type=text(raw.get("type")),
            status=text(raw.get("status"), "Unknown"),
            reason=text(raw.get("reason")),
            message=text(raw.get("message")),
            observed_generation=integer(raw.get("observedGeneration"), 0),
            last_transition_time=parse_time(raw.get("lastTransitionTime")) or 0.0,
        )


def merge_conditions(
    old: Iterable[Condition], new: Iterable[Condition], *, observed_generation: int, now: float
) -> tuple[Condition, ...]:
    """The new conditions, keeping the transition time of those whose status did not change."""
    before = {c.type: c for c in old}
    merged = []
    for condition in new:
        previous = before.get(condition.type)
        since = previous.last_transition_time if previous and previous.status == condition.status else now
        merged.append(replace(condition, observed_generation=observed_generation, last_transition_time=since))
    return tuple(merged)
