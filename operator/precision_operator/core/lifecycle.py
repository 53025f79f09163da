"""What becomes of an assignment when its policy goes, comes back, or finds it lost."""

from dataclasses import replace

from precision_operator.api.policy import Policy
from precision_operator.api.state import HeldWorkload, Phase, State
from precision_operator.core.actions import Notify
from precision_operator.core.facts import Facts
from precision_operator.core.outcome import Outcome
from precision_operator.core.phases.rollback import into_fallback, rolling_back


def continued(policy: Policy, state: State) -> State:
    """The state under this policy. One of another uid takes over what a rollback holds, and begins at its first step."""
    if policy.deleted or not state.policy_uid or state.policy_uid == policy.uid:
        return state
    if state.fallback is not None and state.phase in (Phase.ROLLING_BACK, Phase.HELD):
        return replace(state, commands={}, deletable=False)
    modes = {} if state.fallback is None else state.modes
    return replace(
        state,
        phase=Phase.PENDING,
        reason="PolicyRecreated",
        message="a new policy of this name: its rollout begins at the first step",
        fallback=policy.spec.fallback,
        modes=modes,
        members=(),
        step_index=0,
        failing=(),
        mitigations=(),
        commands={},
        deletable=False,
    )


def lost(policy: Policy, *, transition_id: int) -> State:
    """What replaces an assignment that vanished under its policy: everything in the fallback, until a retry."""
    return State(
        phase=Phase.HELD,
        reason="StateLost",
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
    if state.fallback is None:
        return _keep(facts, state)
    if state.phase is Phase.ROLLING_BACK and not state.by_canary and state.incident is not None:
        return rolling_back(facts)
    held = _held(facts)
    if not held or not state.hold_on_delete or not state.enforce:
        return None
    text = f"the policy was deleted; {len(held)} workloads stay in {facts.spec.fallback}: kubectl precision release"
    reduced = replace(
        state,
        phase=Phase.HELD,
        reason="PolicyDeleted",
        message=text,
        fallback=None,
        modes={h.key: facts.spec.fallback for h in held},
        held=held,
        members=(),
        canary=(),
        comparison=None,
        mitigations=(),
        failing=(),
        deletable=True,
    )
    outcome = _keep(facts, reduced)
    return replace(outcome, notices=(Notify("PolicyDeleted", text),))


def _held(facts: Facts) -> tuple[HeldWorkload, ...]:
    """What a rollback put into the fallback: of the fleet, all that was moved; else those that were rolled back alone."""
    state = facts.state
    if state.by_canary:
        keys = frozenset(state.canary)
    elif state.phase is Phase.HELD:
        keys = frozenset(state.members)
    else:
        keys = frozenset[str]()
    reason = state.incident.reason if state.incident is not None else state.reason
    found = {key: HeldWorkload(key, reason, state.phase_since or facts.now) for key in keys}
    found |= {h.key: h for h in state.held}
    return tuple(sorted(found.values(), key=lambda h: h.key))


def _keep(facts: Facts, state: State) -> Outcome:
    """Held workloads stay in the fallback; nobody else's pods are touched."""
    keys = state.held_keys
    desired = tuple(
        into_fallback(facts, w, d, escalate=False, force=False)
        for w, d in (*facts.movable, *facts.rescuable)
        if w.key in keys
    )
    return Outcome(state, desired)
