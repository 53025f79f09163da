"""What a pass sees as it works out its writes."""

from collections.abc import Mapping
from dataclasses import dataclass

from precision_operator.core.model import Evaluation, PodSignals, pods_seen


@dataclass(frozen=True, slots=True)
class Sight:
    """What the writes of a pass are worked out from."""

    evaluation: Evaluation | None
    generation: int
    """What the writes carry."""
    changed: Mapping[str, int]
    """Workload → the generation of its last change of mode."""
    now: float
    certain: bool = True
    """New pods do get the assigned mode: only then is it worth to take away what came back in another one."""
    nodes_away: frozenset[str] = frozenset()
    """See :class:`~precision_operator.core.model.Observation`."""
    unseen: frozenset[str] = frozenset()
    """See there."""

    @property
    def pods(self) -> Mapping[str, PodSignals]:
        """What each pod says of itself; nothing before the first reading."""
        return pods_seen(self.evaluation)
