"""What a drill leaves behind: a closed report of who asked, what was measured, and what came of it."""

from precision_operator.api.drill import Drill, DrillResult
from precision_operator.api.text import bounded
from precision_operator.api.workload import name_of
from precision_operator.core.observer import RecordedPass
from precision_operator.core.rollback.drill import REASONS
from precision_operator.incidents.report import (
    WORKLOADS_LIMIT,
    IncidentKind,
    IncidentPhase,
    Milestone,
    Moment,
    Report,
    Stages,
    stamp,
)
from precision_operator.reasons import Reason


def drill_report(seen: RecordedPass, drill: Drill) -> Report:
    """The report of a drill that has ended, in this pass or before."""
    spec, state = seen.policy.spec, seen.decision.state
    keys = (drill.workload,) if drill.workload else state.members
    passed = drill.result is DrillResult.PASSED
    return Report(
        id=drill.id,
        policy=seen.policy.name,
        policy_uid=seen.policy.uid,
        scope=drill.scope,
        reason=REASONS[drill.result],
        message=bounded(f"{drill.message}; {_lost(drill)}"),
        target=spec.target,
        fallback=spec.fallback,
        phase_before=seen.before.phase,
        since_before=stamp(seen.before.phase_since),
        kind=IncidentKind.DRILL,
        workloads=tuple(map(name_of, keys))[:WORKLOADS_LIMIT],
        phase=IncidentPhase.CLOSED,
        stages=Stages(
            decided_at=stamp(drill.began_at),
            deadline_at=stamp(drill.deadline_at),
            last_patch_at=stamp(drill.requested_at),
            last_ack_at=stamp(drill.ended_at) if passed else "",
        ),
        timeline=tuple(_moments(drill)),
    )


def _moments(drill: Drill) -> list[Moment]:
    """Times count from the pass that assigned the fallback; an answer is seen when the metrics are read."""
    why = f": {drill.why}" if drill.why else ""
    found = [Moment(stamp(drill.began_at), Reason.DRILLING, bounded(f"asked for by {drill.by or 'unknown'}{why}"))]
    if drill.requested_at is not None:
        text = f"every pod has been asked for it, or taken away, within {drill.requested_at - drill.began_at:.1f} s"
        found.append(Moment(stamp(drill.requested_at), Milestone.REQUESTED, text))
    if drill.half_at is not None:
        text = f"half of {drill.workloads} workloads (p50) reported it within {drill.half_at - drill.began_at:.1f} s"
        found.append(Moment(stamp(drill.half_at), Milestone.IN_FALLBACK, text))
    if drill.ended_at is not None:
        found.append(Moment(stamp(drill.ended_at), REASONS[drill.result], drill.message))
    return found


def _lost(drill: Drill) -> str:
    if not drill.restarted:
        return "no steps were lost: all change at a step boundary"
    return (
        f"{drill.restarted} were to be restarted: the steps since their last checkpoint are lost, how many is not known"
    )
