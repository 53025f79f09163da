"""What becomes of an assignment when its policy goes, comes back, or finds it lost."""

from dataclasses import replace

from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy
from precision_operator.api.spec import PolicyEnforcement
from precision_operator.api.state import HeldWorkload, Phase, State
from precision_operator.core.actions import Notify
from precision_operator.core.facts import Facts
from precision_operator.core.outcome import Outcome
from precision_operator.core.rollback.followup import awaited, follow
from precision_operator.core.rollback.whole import held_alone, rolling_back
from precision_operator.reasons import Reason


def continued(policy: Policy, state: State) -> State:
    """The state under this policy. One of another uid takes over what a rollback holds, and begins at its first step.

    The commands that were carried out stay known: the transition that they answered may still stand.
    """
    idle = policy.deleted or policy.spec.suspend or policy.spec.enforcement is PolicyEnforcement.OBSERVE
    holds = state.fallback is not None and state.phase in (Phase.ROLLING_BACK, Phase.HELD)
    if idle or holds or not state.policy_uid or state.policy_uid == policy.uid:
        return state
    return replace(
        state,
        phase=Phase.PENDING,
        reason=Reason.POLICY_RECREATED,
        message="a new policy of this name: its rollout begins at the first step",
        members=(),
        step_index=0,
        failing=(),
        mitigations=(),
        deletable=False,
    )


def lost(policy: Policy, *, transition_id: int) -> State:
    """What replaces an assignment that vanished under its policy: everything in the fallback, until a retry."""
    return State(
        phase=Phase.HELD,
        reason=Reason.STATE_LOST,
        message="the PrecisionAssignment was deleted: every workload goes to the fallback, until a person retries",
        transition_id=transition_id + 1,
        policy_uid=policy.uid,
        selector=policy.spec.selector,
        fallback=policy.spec.fallback,
    )


def without_policy(facts: Facts) -> Outcome | None:
    """One pass without a policy: a rollback is finished, then only what it put into the fallback is held.

    None: nothing is held, and the assignment can go.
    """
    state = facts.state
    if state.fallback is None and state.phase is Phase.HELD:  # reduced already
        return _keep(facts, replace(state, deletable=not state.suspensions))
    if state.phase is Phase.ROLLING_BACK and not state.by_canary:
        return rolling_back(facts)
    held = _held(facts)
    if not held or not state.hold_on_delete or not state.enforce:
        # A Job that we suspended is resumed by what its record says: that stays until it runs.
        return Outcome(state) if state.suspensions else None
    text = (
        f"the policy was deleted; {len(held)} workloads stay in {facts.spec.fallback}: "
        f"kubectl precision release {facts.policy.name} -n {facts.policy.namespace}"
    )
    reduced = replace(
        state,
        phase=Phase.HELD,
        reason=Reason.POLICY_DELETED,
        message=text,
        fallback=None,
        modes={h.key: Mode.BF16 if h.key in facts.bf16_keys else facts.spec.fallback for h in held},
        contested=frozenset(),
        held=held,
        indexes={},
        index_mode=None,
        members=(),
        shares={},
        canary=(),
        comparison=None,
        mitigations=(),
        failing=(),
        deletable=not state.suspensions,
    )
    outcome = _keep(facts, reduced)
    return replace(outcome, notices=(Notify(Reason.POLICY_DELETED, text), *outcome.notices))


def _held(facts: Facts) -> tuple[HeldWorkload, ...]:
    """What a rollback put into the fallback: of the fleet, all that was moved; else those that were rolled back alone."""
    state = facts.state
    if state.by_canary:
        keys = frozenset(state.canary)
    elif state.phase in (Phase.HELD, Phase.ROLLING_BACK):
        # Of a record that was lost nobody knows who was moved: then it is everybody.
        known = frozenset({*state.members, *state.changed}) if state.members else frozenset[str]()
        keys = known or frozenset(w.key for w in facts.workloads)
    else:
        keys = frozenset[str]()
    reason = state.incident.reason if state.incident is not None else state.reason
    found = {key: HeldWorkload(key, reason, state.phase_since or facts.now) for key in keys}
    found |= {h.key: h for h in state.held}
    return tuple(sorted(found.values(), key=lambda h: h.key))


def _keep(facts: Facts, state: State) -> Outcome:
    """Held workloads stay in the fallback, restarted where they do not acknowledge it; nobody else's pods are touched."""
    incident = state.incident
    if incident is None or incident.last_ack_at is not None:
        return Outcome(state, held_alone(facts, state.held_keys))
    followed = follow(facts, incident, awaited(facts, state.awaited_keys))
    desired = held_alone(facts, state.held_keys, escalate=followed.escalate, force=followed.force)
    return Outcome(replace(state, incident=followed.incident), desired, notices=followed.notices)
