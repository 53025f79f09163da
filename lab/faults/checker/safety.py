"""What must hold at every revision: one function for each invariant that a trace can show.

Each takes one step and says what is wrong with it; None: nothing, or the invariant is not about such a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lab.faults.checker.replay import Step, expected, request_of, spec_of, terminating
from lab.faults.trace import Entry, Trace
from lab.model.delivery import ROLLED_BACK
from lab.model.invariants import EDGES, GUARDED, MOVING
from precision_operator.api.assignment import parse_assignment
from precision_operator.api.commands import Command
from precision_operator.api.modes import Mode, at_least_as_safe, parse_mode
from precision_operator.api.state import Phase, State
from precision_operator.api.wire import boolean, generation, mapping, sequence, text
from precision_operator.contract import CHECKPOINT
from precision_operator.core.cohorts.order import cohort_size
from precision_operator.core.restart.rounds import ROUNDS
from precision_operator.workloads.identity import workload_key
from precision_operator.workloads.reading import read_pod


def latch(step: Step, _: Trace) -> str | None:
    """I1."""
    if step.entry.kind == "Pod":
        return _asked_for_less(step)
    after = step.state
    if after is None:
        return None
    before = step.states[0] if step.states is not None else None
    if (least := _fallback(step, before, after)) is not None and not at_least_as_safe(after.fallback or least, least):
        return f"new pods are assigned {after.fallback}, and the fallback is {least}"
    fleet_wide = after.phase in ROLLED_BACK and not after.by_canary and after.fallback is not None
    if fleet_wide and (after.modes or after.indexes or (before is not None and not after.enforce)):
        return f"new pods of a fleet in {after.phase} may start in another mode than the fallback"
    if before is not None and before.enforce and not after.enforce:
        return "what was assigned is enforced no more"
    if before is not None and step.policy is not None and before.fallback is not None and after.fallback is None:
        return "new pods are assigned nothing, though their policy stands"
    if before is not None and before.phase is Phase.ROLLING_BACK and after.phase is Phase.HELD:
        return _left_behind(step, before)
    if before is None or before.phase not in ROLLED_BACK or after.phase in ROLLED_BACK or before.fallback is None:
        return None
    if (before.phase is Phase.ROLLING_BACK or before.enforce) and not _asked(step, Command.RETRY):
        return f"{before.phase} ended without a person's retry"
    return None


def _fallback(step: Step, before: State | None, after: State) -> Mode | None:
    """The policy's; where it is gone, or edited since: the one before."""
    policy = step.policy
    seen = (after.policy_uid, after.observed_generation)
    if policy is not None and seen == (policy.uid, policy.generation):
        return policy.spec.fallback
    return before.fallback if before is not None else None


def _asked_for_less(step: Step) -> str | None:
    """A pod that is asked for something less safe than its workload is assigned; a checkpoint, in another mode."""
    was, mode = step.before, _asked_for(step)
    if was is None or mode is None:
        return None
    if request_of(step.entry).get(CHECKPOINT) is True:
        trains = read_pod(was.body).view.effective_mode
        return None if mode is trains else f"a checkpoint of pod {was.name} is asked for in {mode}, and not in {trains}"
    key, namespace = workload_key(step.entry.body), step.entry.namespace
    for state in step.world.governing(namespace, key):
        due = state.precision if key in state.shares and key not in state.held_keys else state.assigned(key)
        due = state.index_mode if key in state.indexes else due
        if due is not None and not at_least_as_safe(mode, due):
            return f"pod {was.name} is asked for {mode}, and its workload is assigned {due}"
    return None


def _asked_for(step: Step) -> Mode | None:
    """What a pod that stands is asked for by this write; None: it is asked for nothing new."""
    entry, before = step.entry, step.before
    if before is None or entry.deleted or before.uid != entry.uid or request_of(before) == request_of(entry):
        return None
    return parse_mode(text(request_of(entry).get("mode")))


def _left_behind(step: Step, before: State) -> str | None:
    """A process that trains in another mode than it is assigned when its rollback is said to be over."""
    if before.by_canary or before.fallback is None:
        return None
    for pod, (key, mode) in step.world.processes(step.entry.namespace).items():
        due = before.assigned(key)
        if key in step.world.fleet(step.entry.namespace, before) and due is not None and mode != due:
            return f"Held, and {pod} trains in {mode or 'a mode that it never reported'}, assigned {due}"
    return None


def no_promotion_on_missing_data(step: Step, _: Trace) -> str | None:
    """I2."""
    if step.states is None or not _promoted(*step.states):
        return None
    before, after = step.states
    if before.no_data_since is not None and after.no_data_since is not None:
        return "promoted while metrics of a member are missing"
    processes = step.world.processes(step.entry.namespace).items()
    behind = [pod for pod, (key, mode) in processes if key in before.members and mode != before.assigned(key)]
    if behind and not before.shares:
        return f"promoted before {behind[0]} trains as it is assigned"
    policy = step.policy
    if policy is None or not policy.generation == after.observed_generation == before.observed_generation:
        return None  # its steps were edited
    stage = policy.spec.stages[min(before.step_index, len(policy.spec.stages) - 1)]
    if stage.approval and not _asked(step, Command.PROMOTE):
        return "promoted without the approval that the step waits for"
    watched = (after.phase_since or 0.0) if after.phase in GUARDED else (after.step_since or 0.0)
    if before.step_since is not None and watched - before.step_since < stage.soak_seconds:
        return "promoted before the step's pause was over"
    return None


def single_edge(step: Step, _: Trace) -> str | None:
    """I3."""
    if step.states is None:
        return None
    before, after = step.states
    gone = step.policy is None
    allowed = EDGES[before.phase] | ({Phase.HELD} if gone else set())
    if before.policy_uid != after.policy_uid:
        allowed |= EDGES[Phase.PENDING] | {Phase.PENDING}
    if before.phase is Phase.HELD and not before.enforce:
        allowed |= {Phase.ROLLING_BACK}
    if after.phase is not before.phase and after.phase not in allowed:
        return f"no edge leads from {before.phase} to {after.phase}"
    if after.phase is Phase.PENDING and before.phase in (*MOVING, *GUARDED) and _unedited(step, before, after):
        return f"the rollout began anew from {before.phase}, and nobody asked for another target"
    if after.phase is Phase.DEGRADED and not after.held:
        return "Degraded, and no workload is held"
    if not 0 <= after.transition_id - before.transition_id <= 1:
        return f"the transition id goes from {before.transition_id} to {after.transition_id}"
    same_spec = (after.policy_uid, after.observed_generation) == (before.policy_uid, before.observed_generation)
    moved = after.phase is not before.phase or (same_spec and after.step_index != before.step_index)
    if moved and after.transition_id == before.transition_id:
        return "an edge is not counted"
    if after.step_index > before.step_index + 1:
        return "a step was skipped"
    if after.step_index > before.step_index and before.phase not in MOVING:
        return f"a step was taken in {before.phase}"
    if after.step_index < before.step_index and after.phase is before.phase and same_spec:
        return f"the rollout went back from step {before.step_index} to {after.step_index}"
    return None


def suspensions_written_ahead(step: Step, trace: Trace) -> str | None:
    """I4."""
    others = expected(trace, "suspended_by_others")
    if step.entry.kind == "PrecisionAssignment" and step.before is not None:
        recorded = parse_assignment(step.before.body).suspensions
        kept = step.state.suspensions if step.state is not None else {}
        left = {record.uid for record in recorded.values()} - {record.uid for record in kept.values()}
        forgotten = [
            job.name for job in step.world.of("Job", step.entry.namespace) if job.uid in left and _stopped(job)
        ]
        if set(forgotten) - set(others):
            return f"Job {forgotten[0]} is suspended, and its record went: nobody would resume it"
    entry, before = step.entry, step.before
    if entry.kind != "Job" or before is None or entry.deleted or before.uid != entry.uid:
        return None
    if not _stopped(entry) or _stopped(before) or entry.name in others:
        return None
    states = step.world.states(entry.namespace).values()
    if entry.uid not in {record.uid for state in states for record in state.suspensions.values()}:
        return f"Job {entry.name} was suspended before that was recorded: nobody would resume it"
    return None


def blast_radius(step: Step, _: Trace) -> str | None:
    """I5."""
    if step.entry.kind == "Pod":
        return _beyond_its_share(step)
    policy, after = step.policy, step.state
    if after is None or policy is None or after.phase not in MOVING:
        return None
    before = step.states[0] if step.states is not None else None
    if before is None and not step.created:
        return None
    if policy.generation != after.observed_generation or after.shares:
        return None
    target, namespace = policy.spec.target, step.entry.namespace
    fleet = step.world.fleet(namespace, after)
    inside = {key for key in {*fleet, *after.modes} if after.assigned(key) is target}
    joined = {key for key in inside if before is None or before.assigned(key) is not target}
    if before is not None and not before.enforce:  # what trains in the target already is adopted
        others = {
            key for (place, _), (key, mode) in step.world.reported.items() if place == namespace and mode != target
        }
        inside = joined = inside & others
    stage = policy.spec.stages[min(after.step_index, len(policy.spec.stages) - 1)]
    most = cohort_size(stage.weight, len(fleet))
    if joined and len(inside) > most:
        return f"{len(inside)} workloads are assigned {target}, and {stage.weight} % of the fleet are {most}"
    return None


def _beyond_its_share(step: Step) -> str | None:
    mode, key, namespace = _asked_for(step), workload_key(step.entry.body), step.entry.namespace
    others = [pod for pod in step.world.of("Pod", namespace) if not terminating(pod) and pod.uid != step.entry.uid]
    for state in step.world.governing(namespace, key) if mode is not None else ():
        asked = sum(workload_key(o.body) == key and request_of(o).get("mode") == mode for o in others) + 1
        if mode is state.precision and asked > state.shares.get(key, asked):
            return f"{asked} pods of {key} are asked for {mode}, and {state.shares[key]} may be"
    return None


def no_flap(step: Step, _: Trace) -> str | None:
    """I7."""
    if step.entry.kind != "PrecisionAssignment" or step.before is None or _asked(step, Command.RETRY):
        return None
    before, after, policy = parse_assignment(step.before.body), step.state, step.policy
    if policy is None and not before.hold_on_delete:
        return None  # it releases what it held
    if after is None:
        freed = before.deletable or not before.enforce or _ending(step)
        return "the assignment went, and what a rollback held with it" if _held(step, before) and not freed else None
    least = policy.spec.fallback if policy is not None else before.fallback
    reduced = after.fallback is None and before.fallback is not None
    for key in sorted(_held(step, before) if reduced and before.enforce else before.held_keys - after.contested):
        mode = after.assigned(key)
        if mode is None:
            return f"{key} was rolled back, and is released without a retry"
        for_memory = mode is Mode.BF16 and (policy is None or policy.spec.target is not Mode.BF16)
        if least is not None and not at_least_as_safe(mode, least) and not for_memory:
            return f"{key} was rolled back, and is assigned {mode} without a retry"
    return None


def fencing(step: Step, _: Trace) -> str | None:
    """I8."""
    if step.entry.kind == "Pod" and step.before is not None and step.before.uid == step.entry.uid:
        return _outranked(step)
    if step.state is None:
        return None
    return _fenced_off(step, step.state) or (_under_a_new_generation(*step.states) if step.states is not None else None)


def _outranked(step: Step) -> str | None:
    """A trainer follows a request of a greater generation only: greater than any that its pod ever carried."""
    pod, request = step.entry.name, request_of(step.entry)
    now, (was, mode) = generation(request.get("generation")), step.world.requested.get(step.entry.uid, (0, ""))
    if now is None:
        return None
    if now < was:
        return f"the request of pod {pod} went back from generation {was} to {now}"
    if now == was and mode and request.get("mode") != mode:
        return f"pod {pod} is asked for another mode under the same generation {now}"
    return None


def _fenced_off(step: Step, after: State) -> str | None:
    """One leader an epoch, and none of an older one: nor after the assignment was deleted."""
    key = (step.entry.kind, step.entry.namespace, step.entry.name)
    last = None if step.hidden else step.before or step.world.gone.get(key)
    before = parse_assignment(last.body) if last is not None else after
    if after.epoch < before.epoch:
        return f"a leader of epoch {after.epoch} wrote after one of epoch {before.epoch}"
    if after.epoch == before.epoch and before.writer and after.writer != before.writer:
        return f"two leaders, {before.writer} and {after.writer}, wrote in epoch {after.epoch}"
    return None


def _under_a_new_generation(before: State, after: State) -> str | None:
    if after.generation < before.generation:
        return f"the generation went back from {before.generation} to {after.generation}"
    if _read_by_admission(before) != _read_by_admission(after) and after.generation == before.generation:
        return "admission must do something else under the same generation"
    return None


def no_fight(step: Step, _: Trace) -> str | None:
    """I9."""
    if step.states is None:
        return None
    without_end = [key for key, restart in step.states[1].restarts.items() if restart.rounds > ROUNDS]
    return f"pods of {without_end[0]} are taken away without end" if without_end else None


def secrecy(step: Step, trace: Trace) -> str | None:
    """I11."""
    shown = {"PrecisionAssignment": step.entry.body, "PrecisionPolicy": step.entry.body.get("status")}
    if step.entry.kind not in shown:
        return None
    secrets = mapping(trace.header.expectations.get("secrets"))
    said = list(_texts(shown[step.entry.kind]))
    found = [name for name, secret in secrets.items() if any(text(secret) in each for each in said if text(secret))]
    return f"{found[0]} stands in what people may read" if found else None


def _unedited(step: Step, before: State, after: State) -> bool:
    """The target that the fleet was on its way to is still the policy's."""
    policy = step.policy
    if policy is None or before.policy_uid != after.policy_uid or policy.generation != after.observed_generation:
        return False
    return before.precision is policy.spec.target


def _promoted(before: State, after: State) -> bool:
    same = before.policy_uid == after.policy_uid
    further = after.step_index > before.step_index or after.phase in GUARDED
    return same and before.phase in MOVING and further


def _asked(step: Step, command: Command) -> bool:
    """Whether a person asked for it, in answer to the state before."""
    if step.before is None:
        return False
    answered = parse_assignment(step.before.body).transition_id
    return (step.entry.namespace, step.entry.name, command.value, answered) in step.world.asked


def _held(step: Step, state: State) -> set[str]:
    """Workloads of the fleet that a rollback put into the fallback."""
    fleet = set(step.world.fleet(step.entry.namespace, state))
    if state.fallback is None or state.phase not in ROLLED_BACK:
        return set(state.held_keys)
    moved = set(state.canary if state.by_canary else state.members) or fleet
    return set(state.held_keys) | moved & fleet


def _ending(step: Step) -> bool:
    """Its namespace is on its way out."""
    namespace = step.world.find("Namespace", "", step.entry.namespace)
    return namespace is not None and terminating(namespace)


def _stopped(job: Entry) -> bool:
    return boolean(spec_of(job).get("suspend"), False)


def _texts(value: object) -> Iterator[str]:
    """All texts of a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (key, *_texts(item))
    for item in sequence(value):
        yield from _texts(item)


def _read_by_admission(state: State) -> tuple[object, ...]:
    by_index = state.indexes, state.index_mode
    return state.selector, state.fallback, state.modes, *by_index, state.contested, state.enforce
