"""What must hold at every revision: one function for each invariant that a trace can show.

Each takes one step and says what is wrong with it; None: nothing, or the invariant is not about such a step.
"""

from __future__ import annotations

import json

from lab.faults.checker.replay import Step, annotation, expected, spec_of
from lab.faults.trace import Trace
from lab.model.delivery import ROLLED_BACK
from lab.model.invariants import EDGES, GUARDED, MOVING
from precision_operator.api.commands import Command, answered
from precision_operator.api.modes import at_least_as_safe
from precision_operator.api.state import Phase, State
from precision_operator.api.wire import boolean, generation, mapping
from precision_operator.contract import REQUEST
from precision_operator.core.cohorts import cohort_size
from precision_operator.core.restarting import ROUNDS


def latch(step: Step, _: Trace) -> str | None:
    """I1."""
    if step.states is None:
        return None
    before, after = step.states
    fleet_wide = after.phase in ROLLED_BACK and not after.by_canary and after.fallback is not None
    if fleet_wide and (after.modes or not after.enforce):
        return f"new pods of a fleet in {after.phase} may start in another mode than the fallback"
    left = before.phase is Phase.HELD and after.phase not in ROLLED_BACK and after.fallback is not None
    if left and before.enforce and not _asked(step, Command.RETRY):
        return "Held ended without a person's retry"
    return None


def no_promotion_on_missing_data(step: Step, _: Trace) -> str | None:
    """I2."""
    if step.states is None or not _promoted(*step.states):
        return None
    before, after = step.states
    if _asked(step, Command.PROMOTE):
        return None  # a person promoted
    if before.no_data_since is not None and after.no_data_since is not None:
        return "promoted while metrics of a member are missing"
    policy = step.policy
    if policy is None or not policy.generation == after.observed_generation == before.observed_generation:
        return None  # its steps were edited
    stage = policy.spec.stages[min(before.step_index, len(policy.spec.stages) - 1)]
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
    if not 0 <= after.transition_id - before.transition_id <= 1:
        return f"the transition id goes from {before.transition_id} to {after.transition_id}"
    if after.phase is not before.phase and after.transition_id == before.transition_id:
        return "an edge is not counted"
    if after.step_index > before.step_index + 1:
        return "a step was skipped"
    return None


def suspensions_written_ahead(step: Step, trace: Trace) -> str | None:
    """I4."""
    entry, before = step.entry, step.before
    if entry.kind == "PrecisionAssignment" and entry.deleted and step.states is None and before is not None:
        recorded = step.world.states(entry.namespace)[entry.name].suspensions
        jobs = {job.uid for job in step.world.of("Job", entry.namespace) if boolean(spec_of(job).get("suspend"), False)}
        if jobs & {record.uid for record in recorded.values()}:
            return "the assignment went while it recorded a Job that is suspended"
    if entry.kind != "Job" or before is None or entry.deleted or before.uid != entry.uid:
        return None
    suspended = boolean(spec_of(entry).get("suspend"), False) and not boolean(spec_of(before).get("suspend"), False)
    if not suspended or entry.name in expected(trace, "suspended_by_others"):
        return None
    states = step.world.states(entry.namespace).values()
    if entry.uid not in {record.uid for state in states for record in state.suspensions.values()}:
        return f"Job {entry.name} was suspended before that was recorded: nobody would resume it"
    return None


def blast_radius(step: Step, _: Trace) -> str | None:
    """I5."""
    policy = step.policy
    if step.states is None or policy is None or step.states[1].phase not in MOVING:
        return None
    before, after = step.states
    if policy.generation != after.observed_generation or after.shares:
        return None
    target = policy.spec.target
    inside = {key for key, mode in after.modes.items() if mode is target}
    joined = [key for key in inside if not (before.enforce and before.assigned(key) is target)]
    stage = policy.spec.stages[min(after.step_index, len(policy.spec.stages) - 1)]
    most = cohort_size(stage.weight, len(step.world.fleet(step.entry.namespace, after)))
    if joined and before.enforce and len(inside) > most:
        return f"{len(inside)} workloads are assigned {target}, and {stage.weight} % of the fleet are {most}"
    return None


def no_flap(step: Step, _: Trace) -> str | None:
    """I7."""
    policy = step.policy
    if step.states is None or policy is None or policy.spec.fallback is None:
        return None
    before, after = step.states
    if _asked(step, Command.RETRY):
        return None
    for key in before.held_keys:
        mode = after.assigned(key)
        if mode is not None and not at_least_as_safe(mode, policy.spec.fallback):
            return f"{key} was rolled back, and is assigned {mode} without a retry"
    return None


def fencing(step: Step, _: Trace) -> str | None:
    """I8."""
    if step.entry.kind == "Pod" and step.before is not None and step.before.uid == step.entry.uid:
        older, newer = _requested(step, before=True), _requested(step, before=False)
        if older is not None and newer is not None and newer < older:
            return f"the request of pod {step.entry.name} went back from generation {older} to {newer}"
        return None
    if step.states is None:
        return None
    before, after = step.states
    if after.epoch < before.epoch:
        return f"a leader of epoch {after.epoch} wrote after one of epoch {before.epoch}"
    if after.epoch == before.epoch and before.writer and after.writer != before.writer:
        return f"two leaders, {before.writer} and {after.writer}, wrote in epoch {after.epoch}"
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
    if step.entry.kind not in ("PrecisionAssignment", "PrecisionPolicy"):
        return None
    secrets = mapping(trace.header.expectations.get("secrets"))
    shown = json.dumps({key: step.entry.body.get(key) for key in ("status", "state")})
    found = [name for name, value in secrets.items() if isinstance(value, str) and value in shown]
    return f"{found[0]} stands in what people may read" if found else None


def _promoted(before: State, after: State) -> bool:
    same = before.policy_uid == after.policy_uid
    return same and (after.step_index > before.step_index or (before.phase in MOVING and after.phase in GUARDED))


def _asked(step: Step, command: Command) -> bool:
    """Whether this write carries out what a person asked for in answer to the state before."""
    if step.states is None:
        return False
    before, after = step.states
    given = step.policy is not None and answered(step.policy.annotations, command, before.transition_id) is not None
    return given or before.commands.get(command) != after.commands.get(command)


def _requested(step: Step, *, before: bool) -> int | None:
    entry = step.before if before else step.entry
    raw = annotation(entry, REQUEST) if entry is not None else ""
    try:
        return generation(mapping(json.loads(raw)).get("generation")) if raw else None
    except ValueError:
        return None


def _read_by_admission(state: State) -> tuple[object, ...]:
    return state.selector, state.fallback, state.modes, state.enforce
