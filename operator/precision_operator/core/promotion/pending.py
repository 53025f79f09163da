"""Pending: no step has begun. Leaves for the first one as soon as the policy can be carried out."""

from collections.abc import Mapping
from dataclasses import replace

from precision_operator.api.commands import Command
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.api.text import names
from precision_operator.core.actions import Notify
from precision_operator.core.commands import carried_out
from precision_operator.core.desired import Desired
from precision_operator.core.evidence.assessment import assess, trains_in
from precision_operator.core.facts import Facts
from precision_operator.core.outcome import Outcome
from precision_operator.core.promotion.checks.preflight import preflight
from precision_operator.core.promotion.rollout import assigned
from precision_operator.core.rollback.retry import reenabled
from precision_operator.core.rollback.triggers import find_trigger
from precision_operator.core.rollback.whole import begin_rollback, held_alone
from precision_operator.core.ungoverned import undeliverable, undivided, unsupported
from precision_operator.reasons import Cause, Reason


def pending(facts: Facts) -> Outcome:
    """Start the first step, or say what is missing."""
    state = facts.state
    trigger = find_trigger(facts)
    if trigger is not None:
        return begin_rollback(facts, trigger)
    closed = _missing(facts) or preflight(facts)
    if closed is not None:
        return Outcome(state, _swept(facts), waiting=closed)
    if state.held:
        closed = reenabled(facts)
        if closed is None and facts.asked(Command.RETRY) is not None:
            state = carried_out(replace(state, held=(), breached=(), poisoned=()), Command.RETRY)
            facts = replace(facts, state=state)
    modes = found_modes(facts)
    if isinstance(modes, Cause):
        return Outcome(state, _swept(facts), waiting=modes)
    adopted, breached = _adopted(facts, modes)
    # Those in breach are assigned the fallback by the commit that begins to enforce.
    kept = {key: mode for key, mode in modes.items() if key not in breached}
    facts = replace(facts, state=replace(state, modes=kept))
    cohort = facts.places.in_cohort(0, tuple(sorted(adopted)))
    members = cohort.members
    if not members:
        return Outcome(state, _swept(facts), waiting=_nobody_joins(facts, closed))
    first = f"step 1 of {len(facts.attempt.stages)}: {names([w.name for w, _ in facts.movable if w.key in members])}"
    started = replace(
        facts.state,
        phase=Phase.PROGRESSING,
        reason=Reason.ROLLOUT_STARTED,
        message=f"{first} to {facts.spec.target}",
        enforce=True,
        fallback=facts.spec.fallback,
        precision=facts.spec.target,
        members=members,
        shares=cohort.shares,
        step_index=0,
        step_since=facts.now,
        evidence_since=None,
        comparison=None,
        failing=(),
    )
    begun = replace(facts, state=started)
    return Outcome(started, assigned(begun), notices=(Notify(Reason.ROLLOUT_STARTED, started.message),))


def found_modes(facts: Facts) -> Mapping[str, Mode] | Cause:
    """The workloads that are not in the fallback, and what they are in; or whose mode is not known."""
    state, held = facts.state, facts.state.held_keys
    if state.enforce and state.fallback is not None:
        return {key: mode for key, mode in state.modes.items() if key not in held}
    found = {w: facts.fleet.observed(w) for w, _ in facts.movable if w.key not in held}
    unknown = [w.name for w, mode in found.items() if mode is None]
    if unknown:
        text = (
            f"what {names(unknown)} train in is not known: their environment does not say, and Prometheus has no sample"
        )
        return Cause(Reason.NO_SAMPLES, text)
    return {w.key: mode for w, mode in found.items() if mode is not None and mode is not facts.spec.fallback}


def _adopted(facts: Facts, modes: Mapping[str, Mode]) -> tuple[frozenset[str], frozenset[str]]:
    """Of the workloads that were found in the target: those that are kept as members, and those that are in breach.

    Those of which not enough is known are neither: they stay as they were found, and are watched.
    """
    evaluation, target = facts.evaluation, facts.spec.target
    if evaluation is None:
        return frozenset(), frozenset()
    found = [w for w, _ in facts.movable if modes.get(w.key) is target]
    verdicts = [assess(w, facts.spec, evaluation, mode=target, failing=frozenset()) for w in found]
    breached = frozenset(v.workload.key for v in verdicts if v.breaches)
    trained = frozenset(w.key for w in found if trains_in(w, evaluation.pods, target))
    return trained - breached, breached


def _swept(facts: Facts) -> tuple[Desired, ...]:
    """What is enforced already is kept up; of what it says nothing, pods stay as their templates have them."""
    if not facts.state.enforce:
        return ()
    return assigned(facts) if facts.state.fallback is not None else held_alone(facts, facts.state.held_keys)


def _nobody_joins(facts: Facts, closed: Cause | None) -> Cause:
    """Why there is no canary. ``closed``: why a retry of what is held would not be followed."""
    state = facts.state
    if all(w.key in state.held_keys for w, _ in facts.movable):
        again = facts.command(Reason.AWAITING_RETRY, "retry")
        text = f"a rollback still holds {names([h.name for h in state.held])}; to start again: {again}"
        return closed or Cause(Reason.AWAITING_RETRY, text)
    return (
        facts.places.unwatched
        or undivided(facts)
        or Cause(Reason.COHORT_NOT_RUNNING, "no workload has a running pod: scale one up")
    )


def _missing(facts: Facts) -> Cause | None:
    if facts.observation.problem is not None:
        return facts.observation.problem
    if facts.observation.contested and not facts.workloads:
        return Cause(
            Reason.POLICY_CONFLICT, "all of these workloads belong to other policies; make the selectors disjoint"
        )
    if not facts.workloads and facts.observation.unsupported:
        return Cause(Reason.UNSUPPORTED_KIND, unsupported(facts))
    if not facts.workloads:
        return Cause(Reason.NO_WORKLOADS, "no workload's pod template carries the labels of spec.selector")
    if facts.too_large is not None:
        return facts.too_large
    if not facts.movable:
        return Cause(
            Reason.UNDELIVERABLE,
            f"{undeliverable(facts)}: cannot be moved by delivery {facts.spec.delivery}; "
            "declare the contract (docs/contract.md), or name ENABLE_FP16_TRAINING in the pod template",
        )
    if facts.places.staged is not None and not facts.places.staged:
        label = facts.spec.staging.node_label
        text = f"no workload runs on nodes with {label} alone: label some of `kubectl get nodes --show-labels`"
        return Cause(Reason.NO_STAGING_NODES, f"{text}, or set strategy.canary.by: Share")
    waits = facts.admission_waits or facts.advance_waits
    if waits is not None:
        return waits
    if facts.evaluation is None:
        return Cause(Reason.AWAITING_EVALUATION, "the metrics have not been read yet")
    if not facts.window_clear:
        return Cause(Reason.WINDOW_NOT_CLEAR, "the metrics' window still reaches back into the last rollback")
    if "ack" in facts.evaluation.errors:
        return Cause(
            Reason.METRICS_UNAVAILABLE, "Prometheus gives no answer: nothing is moved that could not be watched"
        )
    return None
