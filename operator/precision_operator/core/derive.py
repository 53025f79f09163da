"""From a policy, its state and what was observed to the facts of a pass."""

from dataclasses import replace

from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy
from precision_operator.api.selector import Selector
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Phase, State
from precision_operator.contract import MAX_POD_GENERATION
from precision_operator.core.evidence.assessment import Assessment, assess, trains_in
from precision_operator.core.evidence.confirmation import believed, update_failing
from precision_operator.core.facts import Facts
from precision_operator.core.memory import fallback_in_bf16
from precision_operator.core.model import Observation, PodView, WorkloadView, pods_seen
from precision_operator.core.progress import live_pods, observed_mode, resolve_delivery


def derive_facts(policy: Policy, state: State, observation: Observation, now: float) -> Facts:
    """Work out the facts of a pass."""
    observation = _resolved(observation, state.generation)
    movable: list[tuple[WorkloadView, Delivery]] = []
    stuck: list[str] = []
    workloads, selector = _selected(policy, state, observation)
    for workload in sorted(workloads, key=lambda w: w.key):
        delivery = resolve_delivery(policy.spec.delivery, workload)
        if delivery is None:
            stuck.append(workload.key)
        else:
            movable.append((workload, delivery))
    facts = Facts(policy, state, observation, now, workloads, selector, tuple(movable), tuple(stuck), (), state.failing)
    verdicts = _judge(facts)
    failing = facts.failing
    if facts.evaluation is not None:
        seen = facts.evaluation
        failing = update_failing(state.failing, verdicts, policy.spec, at=seen.at, clock_since=seen.clock_since)
    rules, fallback = policy.spec.rollback, policy.spec.fallback
    bf16_keys = fallback_in_bf16(rules, fallback, state, observation.evaluation, facts.movable)
    return replace(facts, verdicts=verdicts, failing=failing, bf16_keys=bf16_keys)


def _selected(policy: Policy, state: State, observation: Observation) -> tuple[tuple[WorkloadView, ...], Selector]:
    """The workloads that the policy is about, and the selector that says so.

    An edited selector takes effect once nothing is held under the old one: what a rollback holds stays in our hands.
    """
    if observation.matching is None:
        return observation.workloads, policy.spec.selector
    before, after = observation.matching
    waits = state.holds or _edit_waits(policy, state, observation, after - before)
    keys, selector = (before, state.selector) if waits else (after, policy.spec.selector)
    return tuple(w for w in observation.workloads if w.key in keys), selector


def _edit_waits(policy: Policy, state: State, observation: Observation, joining: frozenset[str]) -> bool:
    """No edit moves a workload: it waits until it is known what the newly selected ones train in.

    They are listed in that by the commit that selects them, which assigns less than the fallback: admission must work.
    """
    if not state.enforce:
        return False
    idle, joined = policy.spec.fallback, [w for w in observation.workloads if w.key in joining]
    unknown = any(observed_mode(w, observation.evaluation, idle=idle) is None for w in joined)
    return unknown or not observation.admission.enforced


def _resolved(observation: Observation, generation: int) -> Observation:
    """Pods as they are believed.

    One whose environment takes the mode from a reference is in what its own process says, where it says anything: what the
    ConfigMap holds now may not be what it started with, so it is not asked, and needs no right to be read. A generation
    far above the assignment's (``generation``) is no generation.
    """
    seen = pods_seen(observation.evaluation)
    limit = max(generation, MAX_POD_GENERATION)

    def is_resolved(pod: PodView) -> bool:
        return pod.started_mode is not None and pod.generation <= limit

    if all(is_resolved(pod) for workload in observation.workloads for pod in workload.pods):
        return observation

    def resolved(pod: PodView) -> PodView:
        if is_resolved(pod):
            return pod
        signals = seen.get(pod.name)
        request = pod.request if pod.request is not None and pod.request.generation <= limit else None
        admitted = tuple(given for given in pod.admitted if given[1] <= limit)
        started_mode = pod.started_mode or (signals.mode if signals is not None else None)
        return replace(pod, request=request, admitted=admitted, started_mode=started_mode)

    workloads = tuple(replace(w, pods=tuple(map(resolved, w.pods))) for w in observation.workloads)
    return replace(observation, workloads=workloads)


def _judge(facts: Facts) -> tuple[Assessment, ...]:
    evaluation = facts.evaluation
    if evaluation is None:
        return ()
    failing: dict[str, set[Signal]] = {}
    confirmed: dict[str, set[Signal]] = {}
    standing = {entry.key for entry in facts.state.failing}
    for entry in facts.state.failing:
        if entry.severity is facts.spec.criterion(entry.signal).severity:
            failing.setdefault(entry.key, set()).add(entry.signal)
            if believed(entry, facts.attempt.failure_limit):
                confirmed.setdefault(entry.key, set()).add(entry.signal)

    def judged(workload: WorkloadView, mode: Mode) -> Assessment:
        stands = frozenset(failing.get(workload.key, ()))
        acted_on = frozenset(confirmed.get(workload.key, ()))
        return assess(workload, facts.spec, evaluation, mode=mode, failing=stands, confirmed=acted_on)

    guarding = facts.state.phase in (Phase.HEALTHY, Phase.DEGRADED)
    verdicts = []
    inside = frozenset(facts.state.members) - facts.state.held_keys
    stranded = tuple((w, d) for w, d in facts.fleet.rescuable if w.key in inside)
    for workload, _ in (*map(facts.fleet.asked_part, facts.fleet.members), *stranded):
        pods = live_pods(workload)
        # On its way to BF16 it is judged in what it still trains in; with BF16 as fallback, in what the others have left.
        for mode in dict.fromkeys((facts.wanted(workload), facts.target, facts.spec.target)):
            asked = bool(pods) and all(pod.effective_mode is mode for pod in pods)
            crashing = asked and any(pod.crashing for pod in pods)
            # What was promoted, or breaches, stays judged even when its metrics are lost: that is Unknown, not gone.
            unseen = any(pod.name not in evaluation.pods for pod in pods)
            watched = asked and (guarding or unseen or workload.key in standing)
            if watched or crashing or trains_in(workload, evaluation.pods, mode):
                verdicts.append(judged(workload, mode))
                break
    verdicts += [judged(workload, facts.state.modes[workload.key]) for workload, _ in facts.fleet.residual]
    return tuple(verdicts)
