"""What a phase has decided, as modes: which workload is assigned what, and under which generation."""

from collections.abc import Mapping
from dataclasses import replace

from precision_operator.api.modes import Mode, safety
from precision_operator.api.state import Phase, State
from precision_operator.core.facts import Facts

_ROLLED_BACK = (Phase.ROLLING_BACK, Phase.HELD)


def assign(facts: Facts, before: State, state: State) -> State:
    """The state with the modes that its phase means. Where admission must do something else, the generation grows."""
    if state.fallback is None:
        assigned = state  # what a deleted policy left, until it is gone or another rollout begins
    else:
        assigned = replace(
            state,
            selector=facts.selector,
            fallback=facts.spec.fallback,
            modes=_modes(facts, before, state),
            shares=_shares(facts, state),
            contested=frozenset(key for key, _ in facts.observation.contested),
        )
        if facts.admission_waits is not None and before.enforce:
            assigned = _nothing_raised(before, assigned, facts.spec.fallback)
        assigned = _by_index(facts, assigned)
    if _read_by_admission(assigned) == _read_by_admission(before):
        return replace(assigned, changed=_alive(facts, assigned.changed, assigned))
    generation = max(facts.fleet.next_generation, assigned.generation)
    changed = {**assigned.changed, **dict.fromkeys(_changed(facts, before, assigned), generation)}
    return replace(assigned, generation=generation, changed=_alive(facts, changed, assigned))


def _nothing_raised(before: State, after: State, wanted: Mode) -> State:
    """What would be assigned something less safe stays as it was: the rest of this commit must not wait for admission.

    ``wanted``: the fallback as it is written now.
    """
    fallback = _safer(before.fallback, wanted)
    known = {*before.modes, *after.modes} - after.contested
    modes = {key: _safer(before.assigned(key), after.modes.get(key, wanted)) for key in known}
    safest = {key: mode for key, mode in modes.items() if mode is not fallback}
    partly = {key: min(n, before.shares.get(key, 0)) for key, n in after.shares.items()}
    still = {key: n for key, n in before.shares.items() if key in after.members and key not in safest}
    return replace(after, fallback=fallback, modes=safest, shares={**still, **partly})


def _safer(was: Mode | None, mode: Mode) -> Mode:
    """The safer one of what was assigned, if anything was, and what would be."""
    return max(was or mode, mode, key=safety)


def _shares(facts: Facts, state: State) -> Mapping[str, int]:
    """Of members that are there."""
    alive = {w.key for w in facts.workloads}.intersection(state.members)
    return {key: share for key, share in state.shares.items() if key in alive}


def _by_index(facts: Facts, state: State) -> State:
    """Which indexes admission gives the target, of what has moved in part by them; of what is rolled back none."""
    back = frozenset(state.canary) if state.by_canary else frozenset(state.members)
    back = state.held_keys | (back if state.phase in _ROLLED_BACK else frozenset())
    shares = {key: share for key, share in state.shares.items() if share and key not in back}
    first = {w.key: w.first_index for w in facts.workloads if w.key in facts.fleet.by_index and w.key in shares}
    target = replace(facts, state=state).target if first else None
    return replace(state, indexes={key: first[key] + shares[key] for key in first}, index_mode=target)


def _read_by_admission(state: State) -> tuple[object, ...]:
    return (
        state.selector,
        state.fallback,
        state.modes,
        state.indexes,
        state.index_mode,
        state.contested,
        state.enforce,
    )


def _modes(facts: Facts, before: State, state: State) -> Mapping[str, Mode]:
    """Only what is not in the fallback; in a rollback what is held in BF16 for want of memory.

    Nothing that has moved in part: admission would give its mode to the pods that are to move, too.
    """
    in_bf16 = dict.fromkeys(sorted(facts.bf16_keys), Mode.BF16)
    if state.phase in _ROLLED_BACK and not state.by_canary:
        return in_bf16
    whole = {w.key: w for w in facts.workloads if w.key not in state.shares}
    modes = {key: mode for key, mode in {**_newly_selected(facts, before), **state.modes}.items() if key in whole}
    if state.by_canary:
        out = frozenset(state.canary)
        return {key: mode for key, mode in modes.items() if key not in out}
    if state.phase is not Phase.PENDING:
        after = replace(facts, state=state)
        modes |= {key: after.wanted(whole[key]) for key in state.members if key in whole}
    held = state.back_keys
    alone = {key: mode for key, mode in in_bf16.items() if key in held}
    return {key: m for key, m in modes.items() if key not in held and m is not facts.spec.fallback} | alone


def _newly_selected(facts: Facts, before: State) -> dict[str, Mode]:
    """Workloads that an edited selector brings in stay in the mode that they are found in, until their turn comes."""
    if facts.observation.matching is None or not before.enforce:
        return {}
    known = facts.observation.matching[0]
    found = {w.key: facts.fleet.observed(w) for w in facts.workloads if w.key not in known}
    return {key: mode for key, mode in found.items() if mode is not None}


def _changed(facts: Facts, before: State, after: State) -> list[str]:
    """Workloads whose mode is another one from now on."""
    if not after.enforce:
        return []
    inside = facts.observation.matching[0] if facts.observation.matching is not None else None
    changed = []
    for workload in facts.workloads:
        governed = before.enforce and (inside is None or workload.key in inside)
        was = before.assigned(workload.key) if governed else None
        mode = after.assigned(workload.key)
        if mode is None:
            continue
        indexes = (state.indexes.get(workload.key) for state in (before, after))
        if mode is not (was or facts.fleet.observed(workload)) or len(set(indexes)) > 1:
            changed.append(workload.key)
    return changed


def _alive(facts: Facts, changed: Mapping[str, int], state: State) -> Mapping[str, int]:
    """Of workloads that are there, or that a rollback holds though they are not."""
    known = {w.key for w in facts.workloads} | state.held_keys
    return {key: generation for key, generation in changed.items() if key in known}
