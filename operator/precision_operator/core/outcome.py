"""What a phase decides: the next state, what every workload should be in, and what the next edge waits for."""

from dataclasses import dataclass, field

from precision_operator.api.state import State
from precision_operator.core.actions import Notify
from precision_operator.core.desired import Desired
from precision_operator.reasons import Cause


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one phase's handler."""

    state: State
    desired: tuple[Desired, ...] = ()
    waiting: Cause | None = None
    """What the next edge waits for."""
    would: Cause | None = None
    """What the operator would do, where the policy only observes."""
    notices: tuple[Notify, ...] = field(default=())
    """Events of this pass."""
