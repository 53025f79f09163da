"""What gates have in common, and what each says."""

from dataclasses import replace

import pytest

from lab.model.policies import policy
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Delivery
from precision_operator.api.state import State
from precision_operator.api.text import names
from precision_operator.core.evidence.assessment import Assessment
from precision_operator.core.evidence.readings import Unknown
from precision_operator.core.model import Evaluation
from precision_operator.core.progress import accepted_modes, progress_of
from precision_operator.core.promotion.checks import CheckInput
from precision_operator.core.promotion.checks.monitored import monitored
from precision_operator.reasons import Reason
from tests.support.views import workload


def test_a_list_of_names_is_sorted_and_bounded_and_says_how_many_are_left_out() -> None:
    assert names(["b", "a"]) == "a, b"
    assert names(list("gfedcba")) == "a, b, c, d, e and 2 more"
    assert names(list("edcba")) == "a, b, c, d, e"


def given(**fields: object) -> CheckInput:
    """A step of a policy with the defaults, of which nobody was judged."""
    found = policy()
    base = CheckInput(found, State(), found.spec.stages[0], Evaluation(1000.0, 0.0), (), (), {}, None)
    return replace(base, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replicas", "reason"),
    [((1,), "AwaitingEvaluation"), ((0, 1), "AwaitingEvaluation"), ((0, 0), "CohortNotRunning")],
    ids=["it runs", "one of it runs", "it does not run"],
)
def test_a_cohort_of_which_nobody_is_judged_promotes_nothing(replicas: tuple[int, ...], reason: str) -> None:
    views = [workload(f"w{number}", replicas=count, pods=()) for number, count in enumerate(replicas)]
    accepted = accepted_modes(policy().spec.target, rollback=False)
    progress = tuple((view, progress_of(view, accepted, None, Delivery.NEW_ONLY)) for view in views)
    closed = monitored(given(progress=progress))
    assert (closed.reason if closed is not None else None) == reason


def test_of_several_workloads_without_data_the_first_by_name_says_which_signal_lacks() -> None:
    lacks = (("b", Signal.SPEED), ("a", Signal.OVERFLOW), ("c", Signal.MEMORY))
    unknown = Unknown(Reason.NO_SAMPLES)
    closed = monitored(given(verdicts=tuple(Assessment(workload(name), {signal: unknown}) for name, signal in lacks)))
    assert closed is not None
    assert closed.message == "no believable data for a, b, c (overflow: NoSamples)"
