"""The conditions that a pass leaves behind."""

from collections.abc import Sequence
from dataclasses import replace

from precision_operator.api.conditions import Condition, merge_conditions
from precision_operator.api.injection import Refusal
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Phase, State
from precision_operator.api.text import bounded, names
from precision_operator.api.workload import name_of
from precision_operator.core.alerting import ALERTING, alerting, speedup
from precision_operator.core.facts import Facts
from precision_operator.core.observed import would_act
from precision_operator.core.outcome import Outcome
from precision_operator.core.plan import Plan
from precision_operator.core.progress import live_pods
from precision_operator.core.promotion.checks.preflight import checked
from precision_operator.core.status.standing import standing
from precision_operator.core.ungoverned import hot_only, undeliverable, undivided, unsupported
from precision_operator.reasons import Reason

_NAMED = 3
"""Of writes that are refused, and of workloads that are blocked: so many are named, each with why."""


def conditions(facts: Facts, outcome: Outcome, planned: Plan) -> tuple[Condition, ...]:
    """All conditions, in a fixed order, with the transition times of those that did not change kept.

    Args:
        facts: with the state before.
        outcome: with the state after.
        planned: the writes of this pass.
    """
    state = outcome.state
    accepted, progressing = _accepted(facts), _progressing(facts, outcome)
    found = [
        *standing(facts, state, accepted=accepted, progressing=progressing),
        accepted,
        _metrics(facts),
        progressing,
        _is("Healthy", state.phase is Phase.HEALTHY, state.reason, state.message),
        _is("RolledBack", state.phase is Phase.HELD, state.reason, state.message),
        _admission(facts, state),
        _fail_safe(facts),
        _writes(facts),
        _stuck(planned.stuck),
        _restartable(facts),
        _pending(planned),
        _capacity(planned),
        _blocked(planned),
        _weights(facts, state),
        _injection(facts),
        _kinds(facts),
        checked(facts),
        speedup(facts, state),
        alerting(facts),
        *([would_act(outcome)] if facts.observes else []),
    ]
    found = [replace(condition, message=bounded(condition.message)) for condition in found]
    return merge_conditions(facts.state.conditions, found, observed_generation=facts.policy.generation, now=facts.now)


def _is(kind: str, true: bool, reason: str, message: str) -> Condition:
    return Condition(kind, "True" if true else "False", reason or Reason.PENDING, message)


def _rest(found: Sequence[object]) -> str:
    """How many there are beside those that are named."""
    return f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""


def without_messages(found: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """As the state keeps them: an alert's message decides whether its Event is sent again, no other's does."""
    return tuple(c if c.type == ALERTING else replace(c, message="") for c in found)


def _admission(facts: Facts, state: State) -> Condition:
    found = facts.observation.admission
    if not state.enforce:
        return Condition("AdmissionEnforced", "False", Reason.NOT_ENFORCING, "no workload has been assigned a mode yet")
    status = "Unknown" if found.enforced is None else str(found.enforced)
    return Condition("AdmissionEnforced", status, found.reason, found.message)


def _fail_safe(facts: Facts) -> Condition:
    """What new pods start in where admission does not see them: it must be FP32."""
    mixed = [w.name for w in facts.workloads if w.template_mode not in (None, Mode.FP32)]
    if mixed:
        text = (
            f"without admission, new pods of {len(mixed)} workloads would start in a mixed mode: {names(mixed)}; their "
            "templates set ENABLE_FP16_TRAINING, or the annotation that it reads"
        )
        return _is("FailSafe", False, Reason.TEMPLATE_STARTS_MIXED, text)
    unknown = [w.name for w in facts.workloads if w.template_mode is None]
    if unknown:
        text = (
            f"what new pods of {len(unknown)} workloads would start in without admission is decided outside their "
            f"templates, by a ConfigMap or a Secret: {names(unknown)}"
        )
        return Condition("FailSafe", "Unknown", Reason.TEMPLATE_READS_REFERENCE, text)
    return _is("FailSafe", True, Reason.TEMPLATES_START_IN_FP32, "")


def _writes(facts: Facts) -> Condition:
    refused = facts.observation.refused
    if not refused:
        return _is("WritesAccepted", True, Reason.WRITES_ACCEPTED, "")
    text = f"not written: {', '.join(f'{write.what} ({write.reason})' for write in refused[:_NAMED])}{_rest(refused)}"
    return _is("WritesAccepted", False, refused[0].reason, text)


def _stuck(stuck: tuple[str, ...]) -> Condition:
    if not stuck:
        return _is("Stuck", False, Reason.NOTHING_STUCK, "")
    text = f"pods of {names(list(stuck))} came back in another mode than the assigned one, twice: see AdmissionEnforced"
    return _is("Stuck", True, Reason.PODS_IN_WRONG_MODE, text)


def _restartable(facts: Facts) -> Condition:
    """What a rollback could not restart: where it does not answer, only a person ends its pods."""
    text = hot_only(facts)
    if not text:
        return _is("Restartable", True, Reason.ALL_CAN_BE_RESTARTED, "")
    return _is(
        "Restartable",
        False,
        Reason.HOT_ONLY,
        f"these change precision while they answer, and are never restarted: {text}",
    )


def _pending(planned: Plan) -> Condition:
    if not planned.pending:
        return _is("PendingRevision", False, Reason.NOTHING_PENDING, "")
    text = (
        f"{names(list(planned.pending))} not restarted: a change of the template has not reached the pods, and a restart "
        "would bring it in; roll it out, take it back, or set rollback.onPendingRevision: Restart"
    )
    return _is("PendingRevision", True, Reason.TEMPLATE_CHANGED, text)


def _capacity(planned: Plan) -> Condition:
    if not planned.lost:
        return _is("CapacityLost", False, Reason.NOTHING_LOST, "")
    text = (
        f"new pods of {names(list(planned.lost))} find no place: nothing more is restarted until they do, but for what "
        "cannot wait; look at their scheduling events"
    )
    return _is("CapacityLost", True, Reason.REPLACEMENT_PENDING, text)


def _blocked(planned: Plan) -> Condition:
    if not planned.blocked:
        return _is("Blocked", False, Reason.NOTHING_BLOCKED, "")
    shown = "; ".join(
        f"{bounded(name, 63)}: {why.reason} {bounded(why.message, 100)}" for name, why in planned.blocked[:_NAMED]
    )
    text = f"terminating pods do not go, and what runs in them is not known: {shown}{_rest(planned.blocked)}"
    return _is("Blocked", True, planned.blocked[0][1].reason, text)


def _weights(facts: Facts, state: State) -> Condition:
    poisoned = frozenset(state.poisoned)
    suspect = [
        workload.name
        for workload, delivery in (*facts.movable, *facts.fleet.rescuable)
        if workload.key in poisoned
        and (not workload.hot or delivery is Delivery.NEW_ONLY or _should_have_rewound(facts, state))
    ]
    if not suspect:
        return _is("WeightsSuspect", False, Reason.NOTHING_SUSPECT, "")
    text = (
        f"{names(suspect)}: a loss was not finite or diverged, and no rewind was acknowledged, so what they resume from may "
        "be poisoned; start them from an older checkpoint"
    )
    return _is("WeightsSuspect", True, Reason.NOT_REWOUND, text)


def _should_have_rewound(facts: Facts, state: State) -> bool:
    """All that was rolled back is in the fallback, for longer than an acknowledgement takes."""
    over = state.incident.last_ack_at if state.incident is not None else None
    patience = facts.spec.rollback.ack_timeout_seconds
    return over is not None and facts.now - over > patience


def _injection(facts: Facts) -> Condition:
    found: dict[Refusal, set[str]] = {}
    for workload in facts.workloads:
        for pod in live_pods(workload):
            if pod.refusal is not None:
                found.setdefault(pod.refusal, set()).add(workload.name)
    if not found:
        return _is("InjectionRefused", False, Reason.NOTHING_REFUSED, "")
    refused = [(refusal, names(list(found[refusal]))) for refusal in Refusal if refusal in found]
    text = f"their label did not bring these the contract: {'; '.join(f'{why}: {who}' for why, who in refused)}"
    return _is("InjectionRefused", True, refused[0][0], text)


def _kinds(facts: Facts) -> Condition:
    if not facts.observation.unsupported:
        return _is("KindsSupported", True, Reason.KINDS_SUPPORTED, "")
    return _is("KindsSupported", False, Reason.UNSUPPORTED_KIND, unsupported(facts))


def _accepted(facts: Facts) -> Condition:
    if facts.observation.problem is not None:
        return _is("Accepted", False, facts.observation.problem.reason, facts.observation.problem.message)
    contested = facts.observation.contested
    if contested:
        found = names([f"{name_of(key)} ({owner})" for key, owner in contested])
        text = f"they belong to another policy, which is older or holds them: {found}; make the selectors disjoint"
        return _is("Accepted", bool(facts.movable), Reason.POLICY_CONFLICT, text)
    if not facts.workloads and facts.observation.unsupported:
        return _is("Accepted", False, Reason.UNSUPPORTED_KIND, unsupported(facts))
    if not facts.workloads:
        return _is(
            "Accepted", False, Reason.NO_WORKLOADS, "no workload's pod template carries the labels of spec.selector"
        )
    if facts.too_large is not None:
        return _is("Accepted", False, facts.too_large.reason, facts.too_large.message)
    if facts.selector != facts.spec.selector:
        text = (
            "spec.selector was edited; the one before stays in force while a rollback holds workloads under it, and until "
            "admission is enforced and it is known what the newly selected workloads train in"
        )
        return _is("Accepted", True, Reason.SELECTOR_PENDING, text)
    if facts.stuck:
        text = f"cannot be moved by delivery {facts.spec.delivery}: {undeliverable(facts)}"
        return _is("Accepted", bool(facts.movable), Reason.UNDELIVERABLE, text)
    whole = undivided(facts)
    if whole is not None:
        return _is("Accepted", bool(facts.places.joinable), whole.reason, whole.message)
    disagree = [w.name for w in facts.workloads if w.labels_disagree]
    if disagree:
        text = f"their own labels and their template's disagree about the selector: {names(disagree)}; the template's count"
        return _is("Accepted", True, Reason.LABELS_DISAGREE, text)
    return _is("Accepted", True, Reason.ACCEPTED, "")


def _metrics(facts: Facts) -> Condition:
    evaluation = facts.evaluation
    if evaluation is None:
        return Condition("MetricsAvailable", "Unknown", Reason.AWAITING_EVALUATION, "")
    if evaluation.errors:
        name = min(evaluation.errors)
        why = evaluation.errors[name]
        return Condition("MetricsAvailable", "False", why.reason, f"{name}: {why.message}")
    if facts.unknown:
        workload, _, reason = facts.unknown[0]
        text = f"{len(facts.unknown)} workloads without data, e.g. {workload}"
        return Condition("MetricsAvailable", "False", reason, text)
    return Condition("MetricsAvailable", "True", Reason.METRICS_AVAILABLE, "")


def _progressing(facts: Facts, outcome: Outcome) -> Condition:
    state, waiting = outcome.state, outcome.waiting
    idle = facts.paused or (waiting if facts.observes else None)
    if idle is not None:
        return _is("Progressing", False, idle.reason, idle.message)
    moving = state.phase in (Phase.PROGRESSING, Phase.ROLLING_BACK)
    if waiting is not None:
        return _is("Progressing", moving and not waiting.reason.stuck, waiting.reason, waiting.message)
    return _is("Progressing", moving, state.reason, state.message)
