"""The conditions that a pass leaves behind."""

from precision_operator.api.canary import Verdict
from precision_operator.api.conditions import Condition, merge_conditions
from precision_operator.api.status import Phase, Status
from precision_operator.core.alerting import alerting
from precision_operator.core.facts import Facts
from precision_operator.core.gates import Closed, names

_STUCK = frozenset(
    {"ProgressDeadlineExceeded", "DeadlineExceeded"}
    | {f"Canary{v}" for v in (Verdict.NO_DIFFERENCE, Verdict.WORSE, Verdict.INCONCLUSIVE)}
)
"""What is waited for without getting nearer by itself."""


def conditions(
    facts: Facts, status: Status, waiting: Closed | None, *, conflicts: tuple[str, ...] = ()
) -> tuple[Condition, ...]:
    """All conditions, in a fixed order, with the transition times of those that did not change kept."""
    found = [
        _accepted(facts, conflicts),
        _metrics(facts),
        _progressing(facts, status, waiting),
        _is("Healthy", status.phase is Phase.HEALTHY, status.reason, status.message),
        _is("RolledBack", status.phase is Phase.HELD, status.reason, status.message),
        _is("GateClosed", status.gate_closed, "GateClosed" if status.gate_closed else "GateOpen", ""),
        alerting(facts),
    ]
    return merge_conditions(facts.status.conditions, found, observed_generation=facts.policy.generation, now=facts.now)


def _is(kind: str, true: bool, reason: str, message: str) -> Condition:
    return Condition(kind, "True" if true else "False", reason or "Pending", message)


def _accepted(facts: Facts, conflicts: tuple[str, ...]) -> Condition:
    if facts.observation.problem is not None:
        return _is("Accepted", False, *facts.observation.problem)
    contested = facts.observation.contested
    if contested:
        text = f"an older policy selects them too: {names([f'{w} ({p})' for w, p in contested])}; make them disjoint"
        return _is("Accepted", bool(facts.movable), "PolicyConflict", text)
    if not facts.observation.workloads:
        return _is("Accepted", False, "NoWorkloads", "no workload's pod template carries the labels of spec.selector")
    if conflicts:
        text = (
            f"somebody else wrote another precision than ours into the templates of {names(list(conflicts))}: they are left "
            "alone until the next rollout; leave these fields out of what you apply"
        )
        return _is("Accepted", True, "ConflictedWriter", text)
    if facts.stuck:
        text = f"cannot be moved by delivery {facts.spec.delivery}: {names(list(facts.stuck))}"
        return _is("Accepted", bool(facts.movable), "Undeliverable", text)
    disagree = [w.name for w in facts.observation.workloads if w.labels_disagree]
    if disagree:
        text = f"their own labels and their template's disagree about the selector: {names(disagree)}; the template's count"
        return _is("Accepted", True, "LabelsDisagree", text)
    return _is("Accepted", True, "Accepted", "")


def _metrics(facts: Facts) -> Condition:
    evaluation = facts.evaluation
    if evaluation is None:
        return Condition("MetricsAvailable", "Unknown", "AwaitingEvaluation", "")
    if evaluation.errors:
        name = min(evaluation.errors)
        reason, _, rest = evaluation.errors[name].partition(":")
        return Condition("MetricsAvailable", "False", reason, f"{name}: {rest.strip()}")
    if facts.unknown:
        workload, why = facts.unknown[0]
        count = len(facts.unknown)
        return Condition(
            "MetricsAvailable", "False", why.split(": ")[1], f"{count} workloads without data, e.g. {workload}"
        )
    return Condition("MetricsAvailable", "True", "MetricsAvailable", "")


def _progressing(facts: Facts, status: Status, waiting: Closed | None) -> Condition:
    if facts.spec.suspend:
        return _is("Progressing", False, "Suspended", "spec.suspend is true: nothing is decided or written")
    moving = status.phase in (Phase.PROGRESSING, Phase.ROLLING_BACK)
    if waiting is not None:
        stuck = waiting.reason in _STUCK
        return _is("Progressing", moving and not stuck, waiting.reason, waiting.message)
    return _is("Progressing", moving, status.reason, status.message)
