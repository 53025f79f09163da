"""What a rollback has cost: steps that were trained in vain, and hours. Pure. What was not measured is Unknown, not 0."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

from precision_operator.api.fields import Field
from precision_operator.api.incident import Scope
from precision_operator.api.policy import Policy
from precision_operator.api.state import Phase, State
from precision_operator.core.evidence.assessment import assess
from precision_operator.core.gain import HOUR_SECONDS, gain_of
from precision_operator.core.model import Observation
from precision_operator.core.observer import RecordedPass
from precision_operator.signals.port import Series

STEP, ORIGIN = "training_step", "training_step_origin"
"""Evidence: the global step, and that less the steps that the process has tried. The second falls by what is rewound."""
MOST_STEPS = 10**9
"""Of a workload: more is no count of steps."""

_ROLLED_BACK = (Phase.ROLLING_BACK, Phase.HELD)


@dataclass(frozen=True, slots=True)
class Cost:
    """What is measured of it. Hours are sums over workloads."""

    workloads: Annotated[int, Field("Workloads that were rolled back.", least=0)] = 0
    steps_lost: Annotated[
        int | None, Field("Steps that rewinds and restarts have undone; absent: not measured.", least=0)
    ] = None
    steps_of: Annotated[int, Field("In how many workloads that was measured.", least=0)] = 0
    restart_hours: Annotated[float, Field("Hours from taking pods away until new ones had acknowledged.", least=0)] = (
        0.0
    )
    slower_rate: Annotated[
        float | None,
        Field("Hours that an hour in the fallback costs, by the speed before the rollback; absent: not measured."),
    ] = None
    slower_of: Annotated[int, Field("In how many workloads that was measured.", least=0)] = 0


NO_COST = Cost()
"""Before anything is measured."""


def rolled_back(before: State, after: State, scope: Scope) -> frozenset[str]:
    """Keys of the workloads that an incident takes back."""
    alone = after.held_keys - before.held_keys
    return alone if scope is Scope.WORKLOAD else frozenset(before.members) - before.held_keys


def opened(seen: RecordedPass, scope: Scope, earlier: Iterable[tuple[Policy, Observation]]) -> Cost:
    """The cost of a rollback that begins: an hour in FP32 is worth what the speed before it says.

    Args:
        seen: the pass that decided it.
        scope: of the incident.
        earlier: what passes before it have seen, the oldest first: at the decision a speed may be the breach's.
    """
    keys = rolled_back(seen.before, seen.decision.state, scope)
    speeds: dict[str, float] = {}
    for policy, observation in (*earlier, (seen.policy, seen.observation)):
        for key, speed in _speeds(policy, observation, keys - speeds.keys()):
            speeds[key] = speed
    rate = round(sum(1.0 - 1.0 / speed for speed in speeds.values()), 4) if speeds else None
    return Cost(workloads=len(keys), slower_rate=rate, slower_of=len(speeds))


def _speeds(policy: Policy, observation: Observation, keys: frozenset[str]) -> Iterable[tuple[str, float]]:
    evaluation = observation.evaluation
    for workload in observation.workloads if evaluation is not None else ():
        if evaluation is not None and workload.key in keys:
            verdict = assess(workload, policy.spec, evaluation, mode=policy.spec.target, failing=frozenset())
            speed = gain_of(verdict, policy.spec, evaluation).speed
            if speed is not None:
                yield workload.key, speed


def restarted(cost: Cost, seen: RecordedPass) -> Cost:
    """With the hours of the restarts that this pass ends, or takes a step further."""
    before, after = seen.before, seen.decision.state
    whole = before.phase in _ROLLED_BACK or after.phase in _ROLLED_BACK
    seconds = 0.0
    for key in {*before.restarts, *before.suspensions}:
        if not whole and key not in before.held_keys:
            continue
        since, now = _since(before, key), _since(after, key)
        ended = seen.now if now is None else now
        seconds += max(0.0, ended - since) if since is not None else 0.0
    return replace(cost, restart_hours=round(cost.restart_hours + seconds / HOUR_SECONDS, 6)) if seconds else cost


def _since(state: State, key: str) -> float | None:
    """When its pods went: what waits for a budget trains on."""
    restart, suspension = state.restarts.get(key), state.suspensions.get(key)
    if restart is not None:
        return restart.counts_since if restart.gone or restart.pods < 0 else None
    return suspension.since if suspension is not None else None


def with_steps(
    cost: Cost, steps: Sequence[Series], origins: Sequence[Series], *, pods: Mapping[str, str], since: float
) -> Cost:
    """With the steps lost, as far as the series of the pods show them.

    Args:
        cost: so far.
        steps: ``STEP`` by pod.
        origins: ``ORIGIN`` by pod, at the same times.
        pods: pod → its workload.
        since: the breach was detected then; what was lost before is another matter.
    """
    found: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    origin_of = {series.labels.get("pod"): dict(series.points) for series in origins}
    for series in steps:
        pod = series.labels.get("pod", "")
        began = origin_of.get(pod, {})
        points = [(at, step, began[at]) for at, step in series.points if at in began]
        if pod in pods and points:
            found.setdefault(pods[pod], {})[pod] = points
    end = max((at for series in steps for at, _ in series.points), default=0.0)
    lost = [_lost(list(by_pod.values()), since, end) for by_pod in found.values()]
    known = [steps for steps in lost if steps is not None]
    return replace(cost, steps_lost=round(sum(known)) if known else None, steps_of=len(known))


def _lost(pods: Sequence[Sequence[tuple[float, float, float]]], since: float, end: float) -> float | None:
    """Of one workload: its ranks lose the same steps, so the pod that lost most counts."""
    old = [points for points in pods if points[0][0] <= since]
    new = [points for points in pods if points[0][0] > since]
    if not old or (new and (len(old) > 1 or len(new) > 1)):
        return None  # which pod has taken the place of which is not known
    if max(points[-1][0] for points in pods) < end:
        return None  # what it went on from is not seen
    if any(
        not 0 <= step <= MOST_STEPS or not abs(origin) <= MOST_STEPS for points in pods for _, step, origin in points
    ):
        return None  # NaN is not within them
    lost = max(_within(points, since) for points in pods)
    return lost + max(0.0, old[0][-1][1] - new[0][0][2]) if new else lost


def _within(points: Sequence[tuple[float, float, float]], since: float) -> float:
    """Of one pod: rewinds of a process, and containers that were started anew and went on from a checkpoint."""
    lost = 0.0
    for (_, step, origin), (at, later_step, later_origin) in pairwise(points):
        if at < since:
            continue
        anew = later_step - later_origin < step - origin
        lost += max(0.0, (step if anew else origin) - later_origin)
    return lost


def hours_in_fallback(cost: Cost, since: float | None, until: float | None) -> float | None:
    """What the slower training has cost between both times; None: it is not known."""
    if cost.slower_rate is None or since is None or until is None:
        return None
    return cost.slower_rate * max(0.0, until - since) / HOUR_SECONDS


def cost_text(cost: Cost, *, since: float | None, until: float | None, ended: bool) -> str:
    """For a person.

    Args:
        cost: of an incident.
        since: when the last trainer was in the fallback.
        until: when training went back to the target, or now while it is in the fallback; None: not known.
        ended: ``until`` is the end.
    """
    of = _share(cost, cost.steps_of)
    steps = "steps lost: unknown" if cost.steps_lost is None else f"{cost.steps_lost} steps lost{of}"
    slower = hours_in_fallback(cost, since, until)
    hours = f"{cost.restart_hours:.2f} h of restarts"
    if cost.slower_rate is None:
        return f"{steps}; {hours}; slower training in the fallback: unknown"
    of = _share(cost, cost.slower_of)
    if slower is None:
        return f"{steps}; {hours}; {cost.slower_rate:.2f} h in each hour in the fallback{of}, until when: unknown"
    return f"{steps}; {hours}; {slower:.2f} h of slower training in the fallback{of}{'' if ended else ', so far'}"


def _share(cost: Cost, measured: int) -> str:
    return f" (in {measured} of {cost.workloads} workloads)" if measured < cost.workloads else ""
