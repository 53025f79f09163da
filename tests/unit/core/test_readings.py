"""What each kind of sample means: the table that peers get wrong."""

import math

import pytest

from lab.model.policies import policy
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import DEFAULT_CRITERIA, Criterion, Severity
from precision_operator.core.evidence.assessment import assess
from precision_operator.core.evidence.readings import Breach, Ok, Reading, Unknown, judge, promotes
from precision_operator.core.model import Evaluation, PodSignals, PodView, WorkloadView
from precision_operator.reasons import Cause, Reason
from tests.support.signals import JUDGED_IN_FP32

CRITERIA = {c.signal: c for c in DEFAULT_CRITERIA}


@pytest.mark.parametrize(
    ("signal", "value", "failing", "kind"),
    [
        (Signal.OVERFLOW, 0.0, False, Ok),
        (Signal.OVERFLOW, 0.10, False, Ok),
        (Signal.OVERFLOW, 0.11, False, Breach),
        (Signal.OVERFLOW, 0.31, False, Breach),
        (Signal.OVERFLOW, 0.25, True, Breach),
        (Signal.OVERFLOW, 0.09, True, Ok),
        (Signal.DIVERGENCE, -5.0, False, Ok),
        (Signal.DIVERGENCE, 0.21, False, Breach),
        (Signal.DIVERGENCE, math.nan, False, Breach),
        (Signal.DIVERGENCE, math.inf, False, Breach),
        (Signal.DIVERGENCE, -math.inf, False, Breach),
        (Signal.OVERFLOW, math.nan, False, Unknown),
        (Signal.OVERFLOW, math.inf, False, Breach),
        (Signal.SPEED, math.inf, False, Unknown),
        (Signal.NON_FINITE, 0.0, False, Ok),
        (Signal.NON_FINITE, 0.01, False, Breach),
        (Signal.SPEED, 0.79, False, Breach),
        (Signal.SPEED, 0.85, True, Breach),
        (Signal.SPEED, 0.9, True, Ok),
        (Signal.SPEED, 3.0, False, Ok),
    ],
)
def test_sample_is_judged(signal: Signal, value: float, failing: bool, kind: type[Reading]) -> None:
    assert isinstance(judge(CRITERIA[signal], value, failing=failing), kind)


@pytest.mark.parametrize(
    ("criterion", "reading", "good"),
    [
        (CRITERIA[Signal.OVERFLOW], Ok(0.04), True),
        (CRITERIA[Signal.OVERFLOW], Ok(0.05), False),
        (CRITERIA[Signal.OVERFLOW], Unknown(Reason.NO_SAMPLES), False),
        (CRITERIA[Signal.OVERFLOW], Breach(0.0, Severity.P1), False),
        (CRITERIA[Signal.NON_FINITE], Ok(0.0), True),
    ],
)
def test_only_good_measurements_promote(criterion: Criterion, reading: Reading, good: bool) -> None:
    assert promotes(criterion, reading) is good


def one(
    signal: Signal, signals: PodSignals | None, *, errors: dict[str, Cause] | None = None, crashing: bool = False
) -> Reading:
    pods = {"p": signals} if signals else {}
    workload = WorkloadView("ns", "apps/Deployment/w", "u", pods=(PodView("p", "pu", crashing=crashing),))
    evaluation = Evaluation(at=1000.0, continuous_since=0.0, pods=pods, errors=errors or {})
    return assess(workload, policy().spec, evaluation, mode=Mode.FP16, failing=frozenset()).readings[signal]


def sample(signal: Signal, value: float | None, *, age: float = 1.0, steps: float | None = 100.0) -> PodSignals:
    values = {} if value is None else {signal: value}
    return PodSignals(Mode.FP16, 1, 1000.0 - age, steps, values)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (one(Signal.OVERFLOW, sample(Signal.OVERFLOW, 0.1)), Ok(0.1)),
        (one(Signal.OVERFLOW, None), Unknown(Reason.NO_SAMPLES)),
        (one(Signal.OVERFLOW, sample(Signal.OVERFLOW, None)), Unknown(Reason.NO_SAMPLES)),
        (one(Signal.OVERFLOW, sample(Signal.OVERFLOW, 0.9, age=61.0)), Unknown(Reason.SAMPLES_TOO_OLD)),
        (one(Signal.OVERFLOW, sample(Signal.OVERFLOW, 0.9, steps=3.0)), Unknown(Reason.TOO_FEW_STEPS)),
        (one(Signal.OVERFLOW, sample(Signal.OVERFLOW, 0.0, steps=None)), Unknown(Reason.TOO_FEW_STEPS)),
        (one(Signal.NON_FINITE, sample(Signal.NON_FINITE, 1.0, steps=3.0)), Breach(1.0, Severity.P0)),
        (one(Signal.NON_FINITE, sample(Signal.NON_FINITE, 0.0, steps=3.0)), Unknown(Reason.TOO_FEW_STEPS)),
        (one(Signal.FAILURES, sample(Signal.FAILURES, None)), Unknown(Reason.NO_SAMPLES)),
        (one(Signal.FAILURES, sample(Signal.FAILURES, math.nan)), Ok(0.0)),
        (one(Signal.FAILURES, sample(Signal.FAILURES, math.nan, steps=3.0)), Unknown(Reason.TOO_FEW_STEPS)),
        (one(Signal.FAILURES, sample(Signal.FAILURES, None, steps=3.0)), Unknown(Reason.TOO_FEW_STEPS)),
        (one(Signal.FAILURES, None, crashing=True), Breach(1.0, Severity.P0)),
        (
            one(
                Signal.OVERFLOW,
                sample(Signal.OVERFLOW, 0.9),
                errors={"overflow": Cause(Reason.DUPLICATE_SERIES, "two")},
            ),
            Unknown(Reason.DUPLICATE_SERIES),
        ),
        (
            one(
                Signal.OVERFLOW,
                sample(Signal.OVERFLOW, 0.9),
                errors={"ack": Cause(Reason.METRICS_UNAVAILABLE, "refused")},
            ),
            Unknown(Reason.METRICS_UNAVAILABLE),
        ),
    ],
)
def test_reading_of_a_workload(reading: Reading, expected: Reading) -> None:
    assert reading == expected


def test_worst_pod_speaks_for_the_workload() -> None:
    pods = (PodView("a", "1"), PodView("b", "2"), PodView("c", "3"))
    table = {
        "a": sample(Signal.OVERFLOW, 0.0),
        "b": sample(Signal.OVERFLOW, 0.9),
        "c": sample(Signal.OVERFLOW, None),
    }
    evaluation = Evaluation(at=1000.0, continuous_since=0.0, pods=table)
    workload = WorkloadView("ns", "apps/Deployment/w", "u", pods=pods)
    verdict = assess(workload, policy().spec, evaluation, mode=Mode.FP16, failing=frozenset())
    assert verdict.readings[Signal.OVERFLOW] == Breach(0.9, Severity.P1)


def test_fp32_is_not_judged_by_what_only_reduced_precision_has() -> None:
    evaluation = Evaluation(at=1000.0, continuous_since=0.0, pods={"p": sample(Signal.OVERFLOW, 0.9)})
    workload = WorkloadView("ns", "apps/Deployment/w", "u", pods=(PodView("p", "1"),))
    verdict = assess(workload, policy().spec, evaluation, mode=Mode.FP32, failing=frozenset())
    assert verdict.readings.keys() == JUDGED_IN_FP32
