"""What counts as a reading of a workload: fresh, of enough steps, of every pod; and how long a breach stands."""

import math
from dataclasses import replace

import pytest

from lab.model.policies import policy
from lab.model.world import GOOD
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicySpec, Severity
from precision_operator.core.evidence.assessment import (
    SPEED_AGE_SHARE,
    Assessment,
    assess,
    cohort_breached,
    lost,
    trains_in,
)
from precision_operator.core.evidence.readings import Breach, Ok, Reading, Unknown
from precision_operator.core.model import Evaluation, PodSignals, PodView, WorkloadView
from precision_operator.reasons import Cause, Reason
from tests.support.signals import JUDGED_IN_FP32

SPEC = policy(evaluation={"failureLimit": 1, "minSteps": 20, "maxSampleAge": "60s"}).spec
AT = 1000.0
FINE = PodSignals(Mode.FP16, 7, AT, 20.0, GOOD)
POD = PodView("p", "uid-p")
VIEW = WorkloadView("ns", "apps/Deployment/w", "uid-w", pods=(POD,))


def evaluation(*, errors: dict[str, Cause] | None = None, at: float = AT, **pods: PodSignals) -> Evaluation:
    return Evaluation(at, 0.0, pods, errors or {})


def readings(
    said: Evaluation, *, view: WorkloadView = VIEW, mode: Mode = Mode.FP16, spec: PolicySpec = SPEC
) -> Assessment:
    return assess(view, spec, said, mode=mode, failing=frozenset())


def reading(signals: PodSignals, signal: Signal = Signal.OVERFLOW) -> Reading:
    return readings(evaluation(p=signals)).readings[signal]


def valued(value: float | None, signal: Signal = Signal.OVERFLOW, steps: float | None = 20.0) -> PodSignals:
    values = {s: v for s, v in GOOD.items() if s is not signal}
    return replace(FINE, steps=steps, values=values if value is None else {**values, signal: value})


def test_a_sample_is_believed_up_to_its_age_and_no_longer() -> None:
    assert isinstance(reading(replace(FINE, sampled_at=AT - 60.0)), Ok)
    assert reading(replace(FINE, sampled_at=AT - 60.5)) == Unknown(Reason.SAMPLES_TOO_OLD)
    assert reading(replace(FINE, sampled_at=None)) == Unknown(Reason.NO_SAMPLES)


def test_a_pod_that_crashes_before_it_has_started_is_judged_beside_one_that_runs() -> None:
    crashing = PodView("q", "uid-q", pending=True, crashing=True)
    both = readings(evaluation(p=FINE), view=replace(VIEW, pods=(POD, crashing)))
    assert both.breaches == (Signal.FAILURES,)


def test_a_signal_that_is_switched_off_poisons_nobodys_weights() -> None:
    off = tuple(replace(c, enabled=c.signal is not Signal.NON_FINITE) for c in SPEC.criteria)
    said = evaluation(p=valued(3.0, Signal.NON_FINITE))
    assert lost(VIEW, SPEC, said)
    assert not lost(VIEW, replace(SPEC, criteria=off), said)


def test_a_speed_over_less_than_half_the_window_is_not_believed() -> None:
    spec = policy(evaluation={"minSteps": 20, "window": "40s", "maxSampleAge": "60s"}).spec

    def speed(value: float, age: float) -> Reading:
        said = evaluation(p=replace(valued(value, Signal.SPEED), sampled_at=AT - age))
        return readings(said, spec=spec).readings[Signal.SPEED]

    silence = SPEED_AGE_SHARE * 40.0
    assert isinstance(speed(0.5, silence), Breach)
    assert isinstance(speed(1.0, silence), Ok)
    assert speed(0.5, silence + 0.5) == speed(1.0, silence + 0.5) == Unknown(Reason.SAMPLES_TOO_OLD)
    older = readings(evaluation(p=replace(FINE, sampled_at=AT - silence - 0.5)), spec=spec).readings
    assert {signal for signal, found in older.items() if not isinstance(found, Ok)} == {Signal.SPEED}


def test_a_pod_that_is_not_seen_is_unknown_not_fine() -> None:
    verdict = readings(evaluation(other=FINE))
    assert verdict.breaches == ()
    assert set(verdict.unknown) == {(criterion.signal, "NoSamples") for criterion in SPEC.criteria if criterion.enabled}


@pytest.mark.parametrize("query", ["ack", "steps", "overflow"])
def test_a_query_that_failed_leaves_its_signals_unknown_with_its_reason(query: str) -> None:
    verdict = readings(evaluation(p=FINE, errors={query: Cause(Reason.METRICS_UNAVAILABLE, "refused")}))
    assert verdict.readings[Signal.OVERFLOW] == Unknown(Reason.METRICS_UNAVAILABLE)
    assert isinstance(verdict.readings[Signal.DIVERGENCE], Ok) is (query == "overflow")


def test_few_steps_say_nothing_but_a_nan_or_a_failed_run_says_it_at_once() -> None:
    assert isinstance(reading(valued(0.9, steps=20.0)), Breach)
    assert reading(valued(0.9, steps=19.9)) == Unknown(Reason.TOO_FEW_STEPS)
    assert reading(valued(0.9, steps=None)) == Unknown(Reason.TOO_FEW_STEPS)
    assert isinstance(reading(valued(1.0, Signal.NON_FINITE, steps=0.0), Signal.NON_FINITE), Breach)
    assert isinstance(reading(valued(0.9, Signal.FAILURES, steps=0.0), Signal.FAILURES), Breach)
    assert reading(valued(0.0, Signal.NON_FINITE, steps=0.0), Signal.NON_FINITE) == Unknown(Reason.TOO_FEW_STEPS)


def test_an_absent_value_is_unknown_also_of_failures_and_no_run_ended_is_none_failed() -> None:
    assert reading(valued(None)) == Unknown(Reason.NO_SAMPLES)
    assert reading(valued(None, steps=3.0)) == Unknown(Reason.TOO_FEW_STEPS)
    assert reading(valued(None, Signal.FAILURES), Signal.FAILURES) == Unknown(Reason.NO_SAMPLES)
    assert reading(valued(math.nan, Signal.FAILURES), Signal.FAILURES) == Ok(0.0)
    assert reading(valued(None, Signal.FAILURES, steps=3.0), Signal.FAILURES) == Unknown(Reason.TOO_FEW_STEPS)


def test_metrics_gone_because_the_pod_crashes_are_a_failure() -> None:
    crashing = replace(VIEW, pods=(replace(POD, crashing=True),))
    verdict = readings(evaluation(errors={"ack": Cause(Reason.METRICS_UNAVAILABLE, "refused")}), view=crashing)
    assert verdict.breaches == (Signal.FAILURES,)


@pytest.mark.parametrize(
    ("signal", "first", "second", "worst"),
    [
        (Signal.OVERFLOW, 0.01, 0.02, 0.02),
        (Signal.OVERFLOW, 0.02, 0.01, 0.02),
        (Signal.SPEED, 1.1, 0.9, 0.9),
        (Signal.OVERFLOW, 0.9, 0.6, 0.9),
        (Signal.SPEED, 0.1, 0.2, 0.1),
    ],
)
def test_the_worst_pod_speaks_for_its_workload(signal: Signal, first: float, second: float, worst: float) -> None:
    two = replace(VIEW, pods=(POD, replace(POD, name="q")))
    found = readings(evaluation(p=valued(first, signal), q=valued(second, signal)), view=two).readings[signal]
    assert not isinstance(found, Unknown)
    assert found.value == worst


def test_a_breach_beats_silence_and_silence_beats_what_is_fine() -> None:
    two = replace(VIEW, pods=(POD, replace(POD, name="q")))
    assert isinstance(readings(evaluation(p=FINE), view=two).readings[Signal.OVERFLOW], Unknown)
    assert isinstance(readings(evaluation(q=valued(0.9)), view=two).readings[Signal.OVERFLOW], Breach)
    nan = readings(evaluation(p=valued(5.0, Signal.DIVERGENCE), q=valued(math.nan, Signal.DIVERGENCE)), view=two)
    found = nan.readings[Signal.DIVERGENCE]
    assert isinstance(found, Breach)
    assert math.isnan(found.value)


def test_pods_on_their_way_out_are_not_asked_and_without_pods_nothing_is_known() -> None:
    leaving = replace(VIEW, pods=(POD, replace(POD, name="q", terminating=True)))
    assert readings(evaluation(p=FINE), view=leaving).unknown == ()
    assert readings(evaluation(p=FINE), view=replace(VIEW, pods=())).readings[Signal.OVERFLOW] == Unknown(
        Reason.NO_PODS
    )


def test_a_pod_that_has_not_started_owes_no_evidence_beside_one_that_runs() -> None:
    waiting = PodView("q", "uid-q", pending=True)
    beside, alone = replace(VIEW, pods=(POD, waiting)), replace(VIEW, pods=(waiting,))
    assert isinstance(readings(evaluation(p=FINE), view=beside).readings[Signal.OVERFLOW], Ok)
    assert readings(evaluation(), view=alone).readings[Signal.OVERFLOW] == Unknown(Reason.NO_SAMPLES)
    assert readings(evaluation(p=FINE, q=valued(0.9)), view=beside).breaches == (Signal.OVERFLOW,), "it was seen"


def test_a_breach_does_not_end_because_its_pod_is_being_replaced() -> None:
    view = replace(VIEW, pods=(POD, PodView("q", "uid-q", pending=True)))
    said = assess(view, SPEC, evaluation(p=FINE), mode=Mode.FP16, failing=frozenset({Signal.OVERFLOW}))
    assert said.readings[Signal.OVERFLOW] == Unknown(Reason.NO_SAMPLES)


def test_series_of_a_pod_that_was_replaced_speak_for_nobody() -> None:
    """Prometheus shows a pod for minutes after it has gone, with the breach that it ended in."""
    gone = valued(0.9)
    assert isinstance(readings(evaluation(old=gone, p=FINE)).readings[Signal.OVERFLOW], Ok)
    young = replace(FINE, steps=3.0)
    assert readings(evaluation(old=gone, p=young)).readings[Signal.OVERFLOW] == Unknown(Reason.TOO_FEW_STEPS)


def test_fp32_is_judged_by_what_it_has_and_a_disabled_criterion_by_nobody() -> None:
    assert readings(evaluation(p=FINE), mode=Mode.FP32).readings.keys() == JUDGED_IN_FP32
    off = policy(criteria={"overflow": {"enabled": False}}).spec
    found = assess(VIEW, off, evaluation(p=FINE), mode=Mode.FP16, failing=frozenset()).readings
    assert Signal.OVERFLOW not in found
    assert Signal.DIVERGENCE in found


def test_a_breach_that_is_confirmed_ends_below_its_lower_threshold_only() -> None:
    overflow, divergence = frozenset({Signal.OVERFLOW}), frozenset({Signal.DIVERGENCE})
    between = evaluation(p=valued(0.25))
    failing = assess(VIEW, SPEC, between, mode=Mode.FP16, failing=overflow, confirmed=overflow)
    assert failing.readings[Signal.OVERFLOW] == Breach(0.25, Severity.P1)
    low = evaluation(p=valued(0.07))
    other = assess(VIEW, SPEC, low, mode=Mode.FP16, failing=divergence, confirmed=divergence)
    assert isinstance(other.readings[Signal.OVERFLOW], Ok)


def test_fp32_cohort_counts_what_is_known_and_what_is_in_breach() -> None:
    views = [replace(VIEW, key=f"apps/Deployment/{n}", pods=(replace(POD, name=n),)) for n in ("good", "bad", "silent")]
    said = evaluation(good=FINE, bad=valued(3.0, Signal.NON_FINITE))
    assert cohort_breached(views, SPEC, said, Signal.NON_FINITE) == (1, 2)
    assert cohort_breached(views, SPEC, said, Signal.OVERFLOW) == (0, 0)


def test_a_workload_trains_in_a_mode_when_every_pod_says_so() -> None:
    two = replace(VIEW, pods=(POD, replace(POD, name="q")))
    assert trains_in(VIEW, {"p": FINE}, Mode.FP16)
    assert not trains_in(VIEW, {"p": FINE}, Mode.FP32)
    assert not trains_in(two, {"p": FINE}, Mode.FP16)
    assert not trains_in(replace(VIEW, pods=()), {"p": FINE}, Mode.FP16)
