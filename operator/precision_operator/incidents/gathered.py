"""Evidence that was asked for, taken into its case with what follows from it."""

from dataclasses import replace

from precision_operator.api.wire import parse_time
from precision_operator.core.observer import RecordedPass
from precision_operator.incidents.cost import ORIGIN, STEP, Cost, rolled_back, with_steps
from precision_operator.incidents.evidence import series_of
from precision_operator.incidents.questions import answer
from precision_operator.incidents.report import IncidentPhase, Report, ReviewAnswer
from precision_operator.incidents.track import Case


def take_evidence(case: Case, seen: RecordedPass) -> bool:
    """Take in the evidence that was asked for, once it is there; whether some was taken.

    ``seen``: the newest pass of the case's own.
    """
    if case.gathering is None or not case.gathering.done():
        return False
    found, case.gathering = case.gathering, None
    case.report = replace(case.report, evidence=found.result())
    if IncidentPhase.VERIFYING in (case.asked, case.report.phase):
        case.report = replace(case.report, cost=_with_steps(case))
    case.report = replace(case.report, questions=answers(case.report, seen))
    return True


def answers(report: Report, seen: RecordedPass) -> tuple[ReviewAnswer, ...]:
    """The questions of the root-cause analysis, by what is known so far."""
    return answer(report, seen.policy.spec, [workload.name for workload in seen.observation.workloads])


def _with_steps(case: Case) -> Cost:
    """With the steps lost, by the evidence, of the workloads whose pods the tape shows."""
    known = {evidence.name: evidence for evidence in case.report.evidence if not evidence.error}
    detected = parse_time(case.report.stages.detected_at)
    if STEP not in known or ORIGIN not in known or detected is None or not case.recordings:
        return case.report.cost
    keys = rolled_back(case.recordings[0].state, case.recordings[-1].state, case.report.scope)
    workloads = (workload for recording in case.recordings for workload in recording.observation.workloads)
    pods = {pod.name: workload.key for workload in workloads if workload.key in keys for pod in workload.pods}
    return with_steps(case.report.cost, series_of(known[STEP]), series_of(known[ORIGIN]), pods=pods, since=detected)
