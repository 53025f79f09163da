"""What gates have in common, and what each says."""

import pytest

from lab.model.policies import policy
from precision_operator.api.spec import Delivery
from precision_operator.api.state import State
from precision_operator.api.text import names
from precision_operator.core.model import Evaluation
from precision_operator.core.progress import accepted_modes, progress_of
from precision_operator.core.promotion.checks import CheckInput
from precision_operator.core.promotion.checks.monitored import monitored
from tests.support.views import workload


def test_a_list_of_names_is_sorted_and_bounded_and_says_how_many_are_left_out() -> None:
    assert names(["b", "a"]) == "a, b"
    assert names(list("gfedcba")) == "a, b, c, d, e and 2 more"
    assert names(list("edcba")) == "a, b, c, d, e"


@pytest.mark.parametrize(
    ("replicas", "reason"),
    [((1,), "AwaitingEvaluation"), ((0, 1), "AwaitingEvaluation"), ((0, 0), "CohortNotRunning")],
    ids=["it runs", "one of it runs", "it does not run"],
)
def test_a_cohort_of_which_nobody_is_judged_promotes_nothing(replicas: tuple[int, ...], reason: str) -> None:
    given = policy()
    views = [workload(f"w{number}", replicas=count, pods=()) for number, count in enumerate(replicas)]
    accepted = accepted_modes(given.spec.target, rollback=False)
    closed = monitored(
        CheckInput(
            policy=given,
            state=State(),
            stage=given.spec.stages[0],
            evaluation=Evaluation(1000.0, 0.0),
            progress=tuple((view, progress_of(view, accepted, None, Delivery.NEW_ONLY)) for view in views),
            verdicts=(),
            promotion={},
            evidence_since=None,
        )
    )
    assert (closed.reason if closed is not None else None) == reason
