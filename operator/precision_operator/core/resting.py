"""A decision that is the one before: nothing that it rests on has changed, and time alone would change nothing.

Work grows with what changed, not with what exists. Only a healthy fleet rests of which every reading is good: what breaches,
is silent, moves, waits or is held is decided on anew in every pass.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from precision_operator.api.incident import is_out_of_window
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicyEnforcement, PolicySpec
from precision_operator.api.state import Phase, State
from precision_operator.core.alerting import expected_speed
from precision_operator.core.decide import Decision, interval_left
from precision_operator.core.evidence.assessment import SPEED_AGE_SHARE
from precision_operator.core.evidence.readings import good_range
from precision_operator.core.model import Evaluation, Observation, PodSignals, WorkloadView
from precision_operator.core.observer import RecordedPass

Standing = tuple[object, ...]
"""What a decision knows of a pod whose readings are all good: the same again decides the same."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A pass that found nothing to do, of which only a change of what was observed can give the next one something."""

    seen: RecordedPass
    standings: Sequence[Standing]


def rest_of(seen: RecordedPass) -> Rest | None:
    """What the next pass may go on from; None where it must decide."""
    decision, observation, state, spec = seen.decision, seen.observation, seen.before, seen.policy.spec
    if decision.state != state or decision.actions or decision.promoting:
        return None
    evaluation = observation.evaluation
    if evaluation is None or not settled(state):
        return None
    if not is_out_of_window(state.incident, at=evaluation.at, window_seconds=spec.evaluation.window_seconds):
        return None
    if seen.policy.deleted or spec.suspend or spec.enforcement is PolicyEnforcement.OBSERVE or observation.suspended:
        return None
    if any(pod.terminating or pod.pending or pod.stopped for w in observation.workloads for pod in w.pods):
        return None
    standings = _standings(spec, state, observation.workloads, evaluation)
    return Rest(seen, standings) if standings is not None else None


def again(rest: Rest, observation: Observation, now: float) -> Decision | None:
    """What ``decide`` makes of this observation, where it is what it made of the one before; None: ask it.

    Args:
        rest: of the same policy and state.
        observation: what there is to decide on now.
        now: seconds since the epoch.
    """
    seen, found = rest.seen, observation.evaluation
    before = seen.observation
    # Nothing is restarted: how much might be does not matter.
    if replace(observation, evaluation=before.evaluation, restart_slots=before.restart_slots) != before:
        return None
    spec, now = seen.policy.spec, round(now, 3)
    if found is None or _standings(spec, seen.before, observation.workloads, found) != rest.standings:
        return None
    return replace(seen.decision, wake_at=now + interval_left(spec.evaluation.interval_seconds, found, now))


def settled(state: State) -> bool:
    """No clock runs in it. Nothing is held or poisoned in Healthy, nor is anybody silent without ``no_data_since``."""
    going_on = state.failing or state.mitigations or state.restarts or state.suspensions or state.drilled
    return state.phase is Phase.HEALTHY and state.no_data_since is None and not going_on


def _standings(
    spec: PolicySpec, state: State, workloads: Iterable[WorkloadView], evaluation: Evaluation
) -> list[Standing] | None:
    """Since when it is watched, and what each pod reports, less what wavers within good values.

    None where something is not good, or not known.
    """
    if evaluation.errors:
        return None
    ranges = [(c.signal, *good_range(c)) for c in spec.criteria if c.enabled]
    rules = spec.evaluation
    # So old a sample may be that all criteria believe it, speed's too.
    oldest_seconds = min(rules.max_sample_age_seconds, SPEED_AGE_SHARE * rules.window_seconds)
    expected = expected_speed(spec, state)
    found: list[Standing] = [(evaluation.continuous_since, evaluation.clock_since)]
    for signals in _signals(workloads, evaluation):
        if signals is None or signals.sampled_at is None or evaluation.at - signals.sampled_at > oldest_seconds:
            return None
        if not signals.has_made(rules.min_steps):
            return None
        values, on = signals.values, signals.runs_on
        absent = list[Signal]()
        for signal, low, high in ranges:
            value = values.get(signal)
            if value is None:
                absent.append(signal)
            elif not low <= value <= high and not (signal is Signal.FAILURES and value != value):  # NaN: none has ended
                return None
        slow = on is not None and on.device == "cuda" and values.get(Signal.SPEED, expected) < expected
        found.append((signals.mode, signals.generation, on, signals.lacks_memory, slow, *absent))
    return found


def _signals(workloads: Iterable[WorkloadView], evaluation: Evaluation) -> Iterator[PodSignals | None]:
    """Of every pod that is selected."""
    return (evaluation.pods.get(pod.name) for workload in workloads for pod in workload.pods)
