"""The questions of the root-cause analysis: the incident's own workloads are looked at, for a whole day."""

from __future__ import annotations

import pytest

from lab.model.policies import policy
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Severity
from precision_operator.api.state import Phase
from precision_operator.incidents.evidence import DAY_SECONDS, Question, keep
from precision_operator.incidents.questions import AGAIN, CHANGED, WARNINGS, answer
from precision_operator.incidents.report import Evidence, Report, Stages, stamp
from precision_operator.reasons import Reason
from precision_operator.signals.port import Series

BEGAN = 1_700_000_000.0
STEP = 720
FLEET = ("hot-1", "hot-2", "hot-1-big")


def ran(pod: str, since: float, until: float, **labels: str) -> Series:
    """A run info, by seconds from the breach on."""
    return Series({"pod": pod, **labels}, tuple((BEGAN + s, 1.0) for s in range(int(since), int(until) + 1, STEP)))


def of_a_day(name: str, *series: Series) -> Evidence:
    """The evidence of them."""
    return keep(Question(name, "q", BEGAN - DAY_SECONDS, BEGAN + 20.0), series, first=())


def report(*evidence: Evidence, scope: Scope = Scope.COHORT, reason: str = Reason.OVERFLOW_RATE_HIGH) -> Report:
    """Of a breach of ``hot-1``."""
    return Report(
        id="fleet-4",
        policy="fleet",
        policy_uid="u",
        severity=Severity.P1,
        scope=scope,
        reason=reason,
        message="",
        target=Mode.FP16,
        fallback=Mode.FP32,
        phase_before=Phase.HEALTHY,
        since_before="",
        workloads=("hot-1",),
        stages=Stages(detected_at=stamp(BEGAN)),
        evidence=evidence,
    )


def answers(of: Report) -> dict[str, str]:
    """By question."""
    return {a.question: a.answer for a in answer(of, policy().spec, FLEET)}


def changed(*series: Series, scope: Scope = Scope.COHORT) -> str:
    """What changed, by these run infos."""
    return answers(report(of_a_day("run_info", *series), scope=scope))[CHANGED]


@pytest.mark.parametrize(
    ("back", "words"), [(600, "10.0 min"), (1500, "25.0 min"), (3600, "60.0 min"), (14400, "4.0 h")]
)
def test_a_change_of_the_last_day_is_named_with_its_time(back: int, words: str) -> None:
    found = changed(ran("hot-1-5", -DAY_SECONDS, -back - STEP, lr="0.1"), ran("hot-1-6", -back, STEP, lr="0.9"))
    seen = f"first seen {stamp(BEGAN - back)}, {words} before the breach"
    assert found == f"lr: 0.1 → 0.9 (hot-1; {seen}); images are not compared"


def test_a_change_of_a_workload_that_is_not_of_the_incident_is_none() -> None:
    own = ran("hot-1-5", -DAY_SECONDS, STEP, lr="0.1")
    for pod in ("other-1", "hot-2-1", "hot-1-big-1"):
        foreign = (ran(pod, -DAY_SECONDS, -1440, lr="0.1"), ran(pod, -600, STEP, lr="0.9"))
        assert changed(own, *foreign).startswith("Nothing that trainers report")
        of_fleet = changed(own, *foreign, scope=Scope.FLEET)
        assert of_fleet.startswith("lr: 0.1 → 0.9" if pod != "other-1" else "Nothing")
        found = answers(report(of_a_day("run_info", own, *foreign)))
        assert found[AGAIN] == "unknown"


def test_a_change_to_a_value_that_a_neighbour_has_is_found() -> None:
    own = (ran("hot-1-5", -DAY_SECONDS, -1440, lr="0.1"), ran("hot-1-6", -720, STEP, lr="0.9"))
    neighbour = ran("hot-2-1", -DAY_SECONDS, STEP, lr="0.9")
    for scope in (Scope.COHORT, Scope.FLEET):
        assert changed(*own, neighbour, scope=scope).startswith("lr: 0.1 → 0.9 (hot-1;")


def test_pods_that_differ_all_day_are_no_change_and_one_that_joins_them_is() -> None:
    both = (ran("hot-1-5", -DAY_SECONDS, STEP, device="a"), ran("hot-1-6", -DAY_SECONDS, STEP, device="b"))
    assert changed(*both).startswith("Nothing that trainers report")
    joined = ran("hot-1-7", -7200, STEP, device="c")
    assert changed(*both, joined).startswith("device: a, b → a, b, c (hot-1;")


def test_what_the_rollback_itself_has_changed_is_not_taken_for_its_cause() -> None:
    before, after = ran("hot-1-5", -DAY_SECONDS, 0, device="a"), ran("hot-1-6", STEP, 4 * STEP, device="b")
    assert changed(before, after).startswith("Nothing that trainers report")


def test_a_workload_younger_than_the_breach_is_unknown() -> None:
    assert changed(ran("hot-1-5", 0, STEP, lr="0.1"), ran("hot-2-1", -DAY_SECONDS, STEP, lr="0.1")) == "unknown"


def test_hardware_of_other_policies_is_no_hardware_of_the_fleet() -> None:
    bad, foreign = ran("hot-1-5", -DAY_SECONDS, STEP, device="a"), ran("other-1", -DAY_SECONDS, STEP, device="b")
    assert answers(report(of_a_day("run_info", bad, foreign)))[AGAIN] == "unknown"
    good = ran("hot-2-1", -DAY_SECONDS, STEP, device="b")
    assert answers(report(of_a_day("run_info", bad, good)))[AGAIN] == "Only on specific hardware"


def values(name: str, *points: tuple[float, float], pod: str = "hot-1-5") -> Evidence:
    """Of a signal, by hours before the breach."""
    return of_a_day(name, Series({"pod": pod}, tuple((BEGAN - hours * 3600.0, value) for hours, value in points)))


CALM = tuple(values(f"{name}_of_a_day", (20, 0.01), (1, 0.01)) for name in ("overflow", "divergence", "failures"))


@pytest.mark.parametrize(
    "reason", [Reason.OVERFLOW_RATE_HIGH, Reason.LOSS_NOT_FINITE, Reason.TRAINING_SLOW, Reason.ABORTED]
)
@pytest.mark.parametrize(("sign", "level"), [("overflow", "0.15"), ("divergence", "0.1"), ("failures", "0.25")])
def test_each_sign_warns_whatever_breached(reason: str, sign: str, level: str) -> None:
    rising = values(f"{sign}_of_a_day", (20, 0.01), (5, 0.28))
    calm = (evidence for evidence in CALM if evidence.name != rising.name)
    found = answers(report(rising, *calm, reason=reason))[WARNINGS]
    assert found == f"Yes: {sign} was above {level} from 18000 s before, of 24.0 h that were read"


def test_all_signs_that_warned_are_named() -> None:
    signs = [values(f"{sign}_of_a_day", (5, 0.28)) for sign in ("overflow", "divergence", "failures")]
    found = answers(report(*signs))[WARNINGS]
    assert [part.split()[0] for part in found.removeprefix("Yes: ").split("; ")] == [
        "overflow",
        "divergence",
        "failures",
    ]


def test_no_sign_is_said_only_of_what_was_read() -> None:
    assert answers(report(*CALM))[WARNINGS] == "No, in the 24.0 h before"
    ended = values("failures_of_a_day", (5, float("nan")))
    assert answers(report(*CALM[:2], ended))[WARNINGS] == "No, in the 24.0 h before; unknown: failures"
    assert answers(report())[WARNINGS] == "unknown"


def test_a_sign_of_another_workload_is_none() -> None:
    foreign = values("overflow_of_a_day", (5, 0.28), pod="hot-1-big-1")
    assert answers(report(foreign, *CALM[1:]))[WARNINGS] == "No, in the 24.0 h before; unknown: overflow"
