"""How a rollback comes to its end: requested, acknowledged by the processes, escalated where that takes too long."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from precision_operator.api.conditions import condition_of
from precision_operator.api.incident import Incident
from precision_operator.api.spec import Delivery, Strategy
from precision_operator.api.text import names
from precision_operator.api.workload import name_of
from precision_operator.core.actions import Notify
from precision_operator.core.facts import Facts
from precision_operator.core.leaving import blocked
from precision_operator.core.model import RestartBy, WorkloadView
from precision_operator.core.progress import Progress, accepted_modes, live_pods, pod_acknowledged
from precision_operator.reasons import Cause, Reason

Movable = Iterable[tuple[WorkloadView, Delivery]]


@dataclass(frozen=True, slots=True)
class Followed:
    """Where a rollback stands after this pass."""

    incident: Incident
    escalate: bool
    """Those who have not acknowledged are restarted."""
    force: bool
    """Where restarted, also the unobservable ones."""
    waiting: Cause | None
    """Whose acknowledgement is missing; None: all are in the fallback."""
    notices: tuple[Notify, ...] = ()


def in_our_hands(facts: Facts, keys: Container[str]) -> list[tuple[WorkloadView, Delivery]]:
    """Those of these workloads whose pods can be moved."""
    return [(w, d) for w, d in (*facts.movable, *facts.fleet.rescuable) if w.key in keys]


def awaited(facts: Facts, keys: Container[str]) -> list[tuple[WorkloadView, Delivery]]:
    """Those of these workloads whose acknowledgement counts: also what nothing can move, while it trains in less."""
    stranded = ((w, d) for w, d in facts.fleet.stranded if w.key in keys and facts.reduced(w))
    return [*in_our_hands(facts, keys), *stranded]


def follow(facts: Facts, incident: Incident, workloads: Movable) -> Followed:
    """Take the measured times of the incident forward, and escalate where its promise is at risk.

    Silence of Prometheus is no silence of the trainers: while nobody's acknowledgement can be read, nobody is restarted
    for lack of it, until the deadline itself has come.
    """
    if (held_up := _blocked(facts, workloads := tuple(workloads))) is not None:
        return Followed(incident, False, False, held_up)
    exceeded = facts.now > incident.deadline_at
    patient = facts.now - _asked_since(facts, incident) <= facts.spec.rollback.ack_timeout_seconds
    late = not patient and (exceeded or not unreadable(facts))
    waiting = [(w, p) for w, p in not_in_fallback(facts, workloads) if not (late and _crashes(facts, w, p))]
    text = names([w.name for w, _ in waiting])
    untouched = {w.key for w, delivery in workloads if delivery is Delivery.NEW_ONLY}
    if all(progress.requested for w, progress in waiting if w.key not in untouched) and incident.last_patch_at is None:
        incident = replace(incident, last_patch_at=facts.now)
    if not waiting:
        if incident.last_ack_at is None:
            incident = replace(incident, last_ack_at=facts.now)
        return Followed(incident, late, exceeded, None)
    notices: tuple[Notify, ...] = ()
    if late and not incident.escalated:
        incident = replace(incident, escalated=True)
        left = untouched | {w.key for w, _ in waiting if w.restart_by is RestartBy.NEVER}
        fixed = [w.name for w, _ in waiting if w.key in left]
        rest = [w.name for w, _ in waiting if w.key not in left]
        said = [f"restarting {names(rest)}"] if rest else []
        said += [f"{names(fixed)} cannot be restarted: end their pods by hand"] if fixed else []
        notices = (Notify(Reason.ROLLBACK_ESCALATED, f"no acknowledgement from {text}: {'; '.join(said)}"),)
    reason = Reason.DEADLINE_EXCEEDED if exceeded else Reason.AWAITING_ACKNOWLEDGEMENT
    if unreadable(facts):
        message = f"Prometheus gives no answer: whether {text} train in {facts.spec.fallback} is not known"
    else:
        message = f"waiting for the trainers of {text} to report {facts.spec.fallback}"
    owners = names([w.name for w, _ in waiting if w.key in untouched])
    if owners:
        message += f"; nothing here restarts {owners}: end their pods by hand"
    known = condition_of(facts.state.conditions, "Progressing")
    if exceeded and (known is None or known.reason != reason):
        notices += (Notify(reason, message),)
    return Followed(incident, late, exceeded, Cause(reason, message), notices)


def _asked_since(facts: Facts, incident: Incident) -> float:
    """From when on an answer is due: from when all had been asked; where that is not known, from when we began to watch.

    What another leader's clock, or a step of this one, adds is no patience: it would restart the whole fleet at once.
    """
    watched = facts.evaluation.continuous_since if facts.evaluation is not None else 0.0
    if _begun(incident) > facts.now:
        return watched  # a clock was set back: what it said then is no measure now
    asked = incident.last_patch_at if incident.last_patch_at is not None else watched
    stepped = facts.evaluation.clock_since if facts.evaluation is not None else 0.0
    return max(hurry_from(facts, incident), asked, stepped)


def hurry_from(facts: Facts, incident: Incident) -> float:
    """From when on everything is written at once: from the start, or where a gradual rollback would miss its deadline."""
    begun, rules = _begun(incident), facts.spec.rollback
    if incident.strategy is Strategy.CANARY:
        return begun + rules.gradual.in_flight_seconds
    if incident.strategy is not Strategy.GRADUAL:
        return begun
    return max(begun, incident.deadline_at - 3 * rules.ack_timeout_seconds)


def _begun(incident: Incident) -> float:
    return max(incident.decided_at, incident.expedited_at or incident.decided_at)


def _blocked(facts: Facts, workloads: Movable) -> Cause | None:
    """Nobody is waited for but pods that nothing here can end: no deadline is about them, and no restart would help."""
    away = facts.observation.nodes_away
    found: dict[str, Cause] = {}
    for workload, delivery in workloads:
        why = {pod.name: blocked(pod, facts.now, away) for pod in workload.pods}
        if any(why.values()) and not_in_fallback(facts, [(workload, delivery)]):
            found[workload.key] = next(filter(None, why.values()))
    if not found or not all(_only_blocked(facts, w, d) for w, d in workloads):
        return None
    text = "; ".join(f"{name_of(key)}: {why.reason} {why.message}" for key, why in sorted(found.items())[:3])
    return Cause(Reason.BLOCKED, f"terminating pods do not go, and what runs in them is not known: {text}")


def _only_blocked(facts: Facts, workload: WorkloadView, delivery: Delivery) -> bool:
    """Without its blocked pods it is in the fallback."""
    away = facts.observation.nodes_away
    rest = tuple(pod for pod in workload.pods if not blocked(pod, facts.now, away))
    return not not_in_fallback(facts, [(replace(workload, pods=rest), delivery)])


def not_in_fallback(facts: Facts, workloads: Movable) -> list[tuple[WorkloadView, Progress]]:
    """Workloads that have not acknowledged the fallback: those, too, of which only new pods will be in it."""
    progress = [
        (workload, facts.progress(workload, accepted_modes(facts.fallback_of(workload), rollback=True), by))
        for workload, delivery in workloads
        for by in [Delivery.RESTART if delivery is Delivery.NEW_ONLY else delivery]
    ]
    return [(workload, found) for workload, found in progress if not found.acknowledged]


def unreadable(facts: Facts) -> bool:
    """No acknowledgement of anybody can be read."""
    return facts.evaluation is None or "ack" in facts.evaluation.errors


def _crashes(facts: Facts, workload: WorkloadView, progress: Progress) -> bool:
    """It trains in nothing: asked, a pod crashes or waits in back-off, and no other one reports something else.

    The others of a process group wait for that one, and report nothing.
    """
    seen = facts.signals
    accepted = accepted_modes(facts.fallback_of(workload), rollback=True)
    pods = live_pods(workload)
    others = [pod for pod in pods if not pod.stopped and pod.name in seen]
    return (
        progress.requested
        and any(pod.stopped for pod in pods)
        and all(pod_acknowledged(pod, seen[pod.name], accepted) for pod in others)
    )
