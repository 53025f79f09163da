"""A step with ``pause: {}`` waits for a person."""

from precision_operator.api.commands import answered
from precision_operator.contract import PROMOTE
from precision_operator.core.gates import Closed, GateInput
from precision_operator.reasons import Reason


def approved(given: GateInput) -> Closed | None:
    """Closed until the promote annotation answers this very transition."""
    answer = given.state.transition_id
    if not given.stage.approval or answered(given.policy.annotations, PROMOTE, answer) is not None:
        return None
    return Closed(
        Reason.AWAITING_APPROVAL,
        f"kubectl annotate --overwrite precisionpolicy {given.policy.name} {PROMOTE}={answer}",
    )
