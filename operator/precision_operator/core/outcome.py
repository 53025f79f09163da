"""What a phase decides: the next status, what every workload should be in, and how eagerly to write it."""

from dataclasses import dataclass, field

from precision_operator.api.status import Status
from precision_operator.core.actions import Action
from precision_operator.core.gates import Closed
from precision_operator.core.plan import Desired


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one phase's handler."""

    status: Status
    desired: tuple[Desired, ...] = ()
    settle: bool = False
    """Whether hot flips may be made lasting now (never while an emergency is under way)."""
    conflicts: tuple[str, ...] = ()
    """Workloads whose template somebody else writes too."""
    waiting: Closed | None = None
    """What the next edge waits for."""
    notices: tuple[Action, ...] = field(default=())
    """Events of this pass."""
