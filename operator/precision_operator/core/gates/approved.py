"""A step with ``pause: {}`` waits for a person."""

from precision_operator.contract import PROMOTE
from precision_operator.core.gates import Closed, GateInput


def approved(given: GateInput) -> Closed | None:
    """Closed until the promote annotation answers this very transition."""
    stage = given.policy.spec.stages[given.status.step_index]
    answer = str(given.status.transition_id)
    if not stage.approval or given.policy.annotations.get(PROMOTE) == answer:
        return None
    return Closed(
        "AwaitingApproval",
        f"kubectl annotate --overwrite precisionpolicy {given.policy.name} {PROMOTE}={answer}",
    )
