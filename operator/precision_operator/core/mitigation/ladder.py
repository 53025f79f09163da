"""Before a mild breach is rolled back: something is tried, or time is given to look, in a window that ends.

A window belongs to one workload and one signal. It spares that workload the gradual rollback and nothing else: what is
more severe, another workload's breach and a person's command go past it.
"""

from collections import defaultdict
from dataclasses import replace

from precision_operator.api.mitigation import Mitigation, MitigationResult, Rung, mitigation_bytes, news
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Failing, State
from precision_operator.api.text import names
from precision_operator.api.wire import format_time
from precision_operator.core.actions import Notify
from precision_operator.core.breaches import standing
from precision_operator.core.evidence.readings import Breach, Ok
from precision_operator.core.facts import Facts
from precision_operator.core.mitigation.windows import length_seconds, reading_of, rungs_left, window_seconds
from precision_operator.core.model import Evaluation, WorkloadView
from precision_operator.core.progress import live_pods, pod_acknowledged
from precision_operator.reasons import Reason

MITIGATIONS_BYTES = 48 * 1024
"""What the windows may take in the assignment."""

GROWTH_BYTES = 256
"""What one takes more in its course, at most: when it was acknowledged and good, and what came of its rungs."""


def mitigate(facts: Facts) -> tuple[Facts, tuple[Notify, ...]]:
    """The facts with every window where it stands after this pass, and what is to be said of that."""
    evaluation = facts.evaluation
    if evaluation is None:
        return facts, ()
    members, selected = {w.key: w for w, _ in facts.fleet.members}, {w.key for w in facts.workloads}
    windows = dict(facts.windows)
    for key, window in list(windows.items()):
        after = _followed(facts, window, members.get(window.key), evaluation) if window.key in selected else None
        if after is None:
            del windows[key]
        else:
            windows[key] = after
    room = MITIGATIONS_BYTES - sum(mitigation_bytes(window) + GROWTH_BYTES for window in windows.values())
    for failing in standing(facts):
        before = windows.get((failing.key, failing.signal))
        begun = _begun(facts, failing, before) if before is None or not before.open else None
        size = mitigation_bytes(begun) + GROWTH_BYTES if begun is not None else 0
        # What there is no room to remember is rolled back without a window.
        if begun is not None and size <= room:
            windows[failing.key, failing.signal] = begun
            room -= size
    return _with(facts, tuple(sorted(windows.values(), key=lambda m: (m.key, m.signal))))


def ended(state: State, keys: frozenset[str] | None = None) -> tuple[Mitigation, ...]:
    """The windows after a rollback of these workloads, or of all: what was open has failed."""
    return tuple(
        replace(m, result=MitigationResult.FAILED) if m.open and (keys is None or m.key in keys) else m
        for m in state.mitigations
    )


def _with(facts: Facts, windows: tuple[Mitigation, ...]) -> tuple[Facts, tuple[Notify, ...]]:
    before = facts.state.mitigations
    if windows == before:
        return facts, ()
    events: dict[tuple[Reason, str], list[Mitigation]] = defaultdict(list)
    for window, reason in news(before, windows):
        events[reason, window.rung or window.signal].append(window)
    generation = max([facts.state.generation, *(m.generation for m in windows)])
    state = replace(facts.state, mitigations=windows, generation=generation)
    notices = tuple(_notice(reason, what, found) for (reason, what), found in sorted(events.items()))
    return replace(facts, state=state), notices


def _notice(reason: Reason, what: str, windows: list[Mitigation]) -> Notify:
    who, signal = names([m.name for m in windows]), windows[0].signal
    if reason is Reason.MITIGATED:
        return Notify(reason, f"{signal} is good again in {who}; tried last: {what}")
    until = format_time(min(m.until for m in windows))
    return Notify(reason, f"{what} in {who}: a breach of {signal} that stands at {until} is rolled back")


def _followed(
    facts: Facts, window: Mitigation, workload: WorkloadView | None, evaluation: Evaluation
) -> Mitigation | None:
    """A window one pass later; None where there is nothing left to remember."""
    if not window.open:
        return _remembered(facts, window)
    if workload is None or not (workload.pods or workload.replicas):
        return None
    # An edit may shorten a window that is open, never lengthen what was promised.
    limit = round(window.since + length_seconds(facts, window.signal), 3)
    window = _applied(replace(window, until=min(window.until, limit)), workload, evaluation)
    reading, at = reading_of(facts, window.key, window.signal), round(evaluation.at, 3)
    if isinstance(reading, Ok):
        since = at if window.good_since is None else min(window.good_since, at)
        window = replace(window, good_since=since)
        good = at - max(since, evaluation.continuous_since)
        return replace(window, result=MitigationResult.MITIGATED) if good >= _dwell_seconds(facts, window) else window
    window = replace(window, good_since=None)
    if isinstance(reading, Breach) and facts.now < window.until and _tried(facts, window, workload, evaluation):
        found = f"{reading.value:.3g}" if window.acknowledged_at is not None else Reason.NOT_ACKNOWLEDGED
        return _climbed(facts, window, found)
    return window


def _remembered(facts: Facts, window: Mitigation) -> Mitigation | None:
    """What helped is not tried again before the workload has proved itself; BF16 is where it stays."""
    if window.result is MitigationResult.FAILED or window.rung is Rung.BF16 or window.good_since is None:
        return window
    return window if facts.now - window.good_since < facts.spec.reenable.stable_seconds else None


def _applied(window: Mitigation, workload: WorkloadView, evaluation: Evaluation) -> Mitigation:
    """Applied: every pod's own process says so. An investigation asks for nothing."""
    if window.rung is None or window.acknowledged_at is not None:
        return window
    accepted = frozenset({Mode.BF16 if window.rung is Rung.BF16 else Mode.FP16})
    pods = live_pods(workload)
    applied = bool(pods) and all(
        pod.request is not None
        and pod.request.generation >= window.generation
        and pod_acknowledged(pod, evaluation.pods.get(pod.name), accepted)
        for pod in pods
    )
    return replace(window, acknowledged_at=round(evaluation.at, 3)) if applied else window


def _dwell_seconds(facts: Facts, window: Mitigation) -> float:
    """How long it must be good. An investigation asks for one metrics window: then nothing of the slow time is in it."""
    if window.signal is Signal.SPEED:
        return facts.spec.evaluation.window_seconds
    return facts.spec.rollback.mitigation.dwell_seconds


def _tried(facts: Facts, window: Mitigation, workload: WorkloadView, evaluation: Evaluation) -> bool:
    """Whether the rung has had its chance: applied, and the metrics show nothing else; or seen not to be applied."""
    if window.rung is None or window.rung_since is None:
        return False
    if window.acknowledged_at is not None:
        chance = max(facts.spec.rollback.mitigation.dwell_seconds, facts.spec.evaluation.window_seconds)
        return facts.stood_seconds(window.acknowledged_at) >= chance
    seen = all(pod.name in evaluation.pods for pod in live_pods(workload))
    return seen and facts.stood_seconds(window.rung_since) > facts.spec.rollback.ack_timeout_seconds


def _climbed(facts: Facts, window: Mitigation, found: str) -> Mitigation:
    """The next rung; where there is none the window ends, and the rollback is the last one."""
    window = replace(window, found=(*window.found, f"{window.rung}: {found}"))
    left = rungs_left(facts, window.key, window.rung)
    return _on_rung(facts, window, left[0]) if left else replace(window, until=facts.now)


def _begun(facts: Facts, failing: Failing, before: Mitigation | None) -> Mitigation | None:
    """A window for a confirmed breach. Where one has helped before, it goes on from the next rung; None: rolled back."""
    seconds = window_seconds(facts, failing)
    if seconds <= 0:
        return None
    until = round(facts.now + seconds, 3)
    window = Mitigation(failing.key, failing.signal, since=facts.now, until=until)
    if failing.signal is Signal.SPEED:
        return window if before is None else None
    if before is not None:
        window = replace(window, found=(*before.found, f"{before.rung}: {before.result}"))
    left = rungs_left(facts, failing.key, before.rung if before is not None else None)
    return _on_rung(facts, window, left[0]) if left else None


def _on_rung(facts: Facts, window: Mitigation, rung: Rung) -> Mitigation:
    return replace(
        window,
        rung=rung,
        rung_since=facts.now,
        generation=facts.fleet.next_generation,
        acknowledged_at=None,
    )
