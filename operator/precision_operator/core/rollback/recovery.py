"""What comes after a rollback: training that ends well again, and the checklist that is being worked through."""

from dataclasses import replace

from precision_operator.api.incident import Incident, Scope
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase, State
from precision_operator.api.verification import Checks
from precision_operator.core.facts import Facts
from precision_operator.core.model import WorkloadView
from precision_operator.core.progress import live_pods


def looked_after(facts: Facts, state: State) -> Incident | None:
    """The incident with when its workloads had recovered, and with the counts of its checklist."""
    incident = state.incident
    if incident is None:
        return None
    if incident.recovered_at is None and recovered(facts, state, incident):
        incident = replace(incident, recovered_at=facts.now)
    verified = facts.observation.verified
    if verified is not None and verified[0] == incident.id and _news(incident.checks, verified[1]):
        incident = replace(incident, checks=verified[1])
    return incident


def _news(known: Checks | None, found: Checks) -> bool:
    """Whether the counts are worth a write: a line failed, or all are done. The PrecisionIncident has each as it comes."""
    return found.pending == 0 or found.failed != (known.failed if known is not None else 0)


def recovered(facts: Facts, state: State, incident: Incident) -> bool:
    """More than the policy's share of runs end well in every pod that was rolled back, looking at nothing before that.

    A pod of which no run has ended yet has not recovered: absent data is Unknown, never success.
    """
    evaluation = facts.evaluation
    alone = incident.scope is Scope.WORKLOAD
    standing = bool(state.held) if alone else state.phase is Phase.HELD
    if evaluation is None or incident.last_ack_at is None or not standing:
        return False
    if evaluation.at - incident.last_ack_at < facts.spec.evaluation.window_seconds:
        return False
    seen = evaluation.pods
    pods = [pod for workload in _concerned(facts, state, incident) for pod in live_pods(workload) if not pod.pending]
    shares = [s.values.get(Signal.FAILURES) if (s := seen.get(pod.name)) is not None else None for pod in pods]
    wanted = facts.spec.rollback.recovery_success
    return bool(shares) and all(share is not None and 1.0 - share > wanted for share in shares)


def _concerned(facts: Facts, state: State, incident: Incident) -> list[WorkloadView]:
    alone = incident.scope is Scope.WORKLOAD
    keys = state.held_keys & frozenset(state.breached) if alone else frozenset(state.members)
    return [w for w in facts.workloads if w.key in keys]
