"""Everything about one pass, worked out once: who is selected, how each can be moved, what each reads."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from precision_operator.api.assignment import OBJECT_LIMIT_BYTES, RESERVE_BYTES, fleet_bytes
from precision_operator.api.commands import Answer, Command, answered
from precision_operator.api.incident import is_out_of_window
from precision_operator.api.mitigation import Mitigation, in_bf16
from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy
from precision_operator.api.selector import Selector
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Delivery, Fallback, PolicyEnforcement, PolicySpec
from precision_operator.api.state import Failing, Phase, State
from precision_operator.core.attempt import Attempt
from precision_operator.core.evidence.assessment import Assessment, lost
from precision_operator.core.fleet import Fleet, Parts
from precision_operator.core.leaving import blocked, noticed
from precision_operator.core.memory import lacks_memory
from precision_operator.core.model import Evaluation, Observation, PodSignals, WorkloadView, pods_seen
from precision_operator.core.places import Places
from precision_operator.core.progress import (
    Progress,
    accepted_modes,
    asked_to_rewind,
    progress_of,
)
from precision_operator.reasons import Cause, Reason

SILENCES_LIMIT = 50
"""So many different times of silences are kept; beyond, they lie on a grid of as many within ``noDataLimit``."""

_WATCHED = (Phase.PROGRESSING, Phase.PAUSED, Phase.HEALTHY, Phase.DEGRADED)


@dataclass(frozen=True)
class Facts:
    """The input of a phase. Without slots: what is asked of it once a workload is worked out once a pass."""

    policy: Policy
    state: State
    observation: Observation
    now: float
    workloads: tuple[WorkloadView, ...]
    """What the selector in force matches."""
    selector: Selector
    """The selector in force: the policy's, or the one that it had before, while workloads are held under that."""
    movable: tuple[tuple[WorkloadView, Delivery], ...]
    """Selected workloads with the way in which each can be moved, by name."""
    stuck: tuple[str, ...]
    """Keys of selected workloads that no delivery can move."""
    verdicts: tuple[Assessment, ...]
    """Members that train in the target precision (or crash in it), judged."""
    failing: tuple[Failing, ...]
    """The breaches that stand after this evaluation."""
    bf16_keys: frozenset[str] = frozenset()
    """Keys of the workloads whose fallback is BF16, for want of memory; settled at the start of a pass."""
    parts: Parts = field(default_factory=dict, compare=False, repr=False)
    """What was found of workloads that have moved in part: nothing of it depends on more of the state than their shares."""

    @cached_property
    def fleet(self) -> Fleet:
        """Who is moved, and what of each."""
        return Fleet(self.policy, self.state, self.observation, self.workloads, self.movable, self.stuck, self.parts)

    @cached_property
    def places(self) -> Places:
        """Who takes the places of a step."""
        return Places(self.fleet, self.attempt, self.free_slots)

    @cached_property
    def attempt(self) -> Attempt:
        """What this attempt goes by."""
        return Attempt(self.spec, self.state)

    @property
    def spec(self) -> PolicySpec:
        """The policy's spec."""
        return self.policy.spec

    @property
    def paused(self) -> Cause | None:
        """Why nothing is decided or written: everything is halted, or this policy is suspended."""
        if self.observation.halted is not None or not self.spec.suspend:
            return self.observation.halted
        return Cause(Reason.SUSPENDED, "spec.suspend is true: nothing is decided or written")

    @property
    def observes(self) -> bool:
        """What is decided is reported, and not done."""
        return self.paused is None and self.spec.enforcement is PolicyEnforcement.OBSERVE

    @property
    def acts(self) -> bool:
        """What is decided is done."""
        return self.paused is None and not self.observes

    @property
    def evaluation(self) -> Evaluation | None:
        """The newest reading of the metrics."""
        return self.observation.evaluation

    @property
    def signals(self) -> Mapping[str, PodSignals]:
        """What it says of each pod, by name; nothing where there is none."""
        return pods_seen(self.evaluation)

    @cached_property
    def poisoned(self) -> frozenset[str]:
        """Keys of the workloads that are rolled back and whose weights are poisoned.

        That is seen in their losses while the metrics' window reaches back into their time in reduced precision, whatever
        the rollback was for: one look is enough, and it may come after they were asked for the fallback.
        """
        state, evaluation = self.state, self.evaluation
        known = frozenset(state.poisoned)
        whole = state.phase in (Phase.ROLLING_BACK, Phase.HELD)
        incident = state.incident
        if evaluation is None or incident is None or not (whole or state.held):
            return known
        over, window_seconds = incident.last_ack_at, self.spec.evaluation.window_seconds
        if over is not None and evaluation.at - over >= window_seconds:
            return known
        keys = state.held_keys.union(state.members if whole else ()) - known
        rolled_back = (w for w in self.workloads if w.key in keys)
        return known | {w.key for w in rolled_back if not asked_to_rewind(w) and lost(w, self.spec, evaluation)}

    def asked(self, command: Command) -> Answer | None:
        """A person's command that answers this very transition."""
        return answered(self.policy.annotations, command, self.state.transition_id)

    def stood_seconds(self, since: float) -> float:
        """How long something has stood, at the last reading, less what another clock or a step of this one adds."""
        evaluation = self.evaluation
        return evaluation.at - max(since, evaluation.clock_since) if evaluation is not None else self.now - since

    def command(self, reason: Reason, verb: str, *, missing: str = "") -> str:
        """What a person types for this policy, of what the reason's next steps name."""
        return reason.command(verb, name=self.policy.name, namespace=self.policy.namespace, missing=missing)

    def progress(self, workload: WorkloadView, accepted: frozenset[Mode], delivery: Delivery) -> Progress:
        """Where a workload stands on its way to one of the ``accepted`` modes."""
        hot = delivery is Delivery.HOT
        restart = self.state.restarts.get(workload.key)
        went = noticed(workload, restart, self.now).counts_since if restart is not None else None
        patience = self.spec.rollback.ack_timeout_seconds
        found = progress_of(
            workload,
            accepted,
            self.evaluation,
            delivery,
            since=self.state.changed.get(workload.key, 0) if hot else 0,
            replacing=went is not None and 0 <= self.now - went <= patience,
        )
        return replace(found, acknowledged=False) if self._may_train_on(workload, accepted) else found

    def _may_train_on(self, workload: WorkloadView, accepted: frozenset[Mode]) -> bool:
        """A pod of another mode does not go, and nobody reports from its node: no sample is no proof of its end."""
        away = self.observation.nodes_away
        return any(
            pod.effective_mode not in accepted and not pod.finalizer and bool(blocked(pod, self.now, away))
            for pod in workload.pods
        )

    def lacks_memory(self, workload: WorkloadView) -> bool:
        """FP32 would run out of device memory in a process that has trained in less."""
        return lacks_memory(workload, self.evaluation)

    def fallback_of(self, workload: WorkloadView) -> Mode:
        """What a rollback puts this workload into. A canary is compared in the policy's own fallback."""
        held_in_bf16 = workload.key in self.bf16_keys and workload.key not in self.state.canary
        return Mode.BF16 if held_in_bf16 else self.spec.fallback

    @property
    def advance_waits(self) -> Cause | None:
        """Why nobody may be promoted now, whatever the metrics."""
        if self.free_slots != 0:
            return None
        text = (
            "as many workloads as config.maxPromotingWorkloads allows are being promoted, or a new leader still counts"
        )
        return self.observation.outside_schedule or Cause(Reason.PROMOTION_CAP, text)

    @cached_property
    def free_slots(self) -> int | None:
        """How many more may be promoted now, by the schedule and the cap; None: all. The way to FP32 is always open."""
        if not self.spec.target.reduced:
            return None
        if self.observation.outside_schedule is not None:
            return 0
        slots = self.observation.promotion_slots
        return None if slots is None else max(0, slots.left - len(self.promoting - slots.overdue))

    @cached_property
    def promoting(self) -> frozenset[str]:
        """Keys of the members that do not report the mode that they are to train in; none once the fleet goes back."""
        if self.state.phase in (Phase.ROLLING_BACK, Phase.HELD):
            return frozenset()
        return frozenset(
            w.key
            for w, delivery in self.fleet.members
            if w.key not in self.state.drilled
            and not self.progress(w, accepted_modes(self.wanted(w), rollback=False), delivery).acknowledged
        )

    @property
    def admission_waits(self) -> Cause | None:
        """Why nothing is promoted: it is not certain that new pods get the mode that is assigned to them."""
        found = self.observation.admission
        return None if found.enforced else Cause(found.reason, found.message)

    @cached_property
    def too_large(self) -> Cause | None:
        """Why the fleet cannot be governed: its assignment would not fit into one object."""
        limit = OBJECT_LIMIT_BYTES - RESERVE_BYTES
        contested = (key for key, _ in self.observation.contested)
        needed = fleet_bytes((*(w.key for w in self.workloads), *contested))
        if needed <= limit:
            return None
        text = (
            f"{len(self.workloads)} workloads need {needed} bytes of a PrecisionAssignment, and {limit} is the limit: "
            "divide them among several policies"
        )
        return Cause(Reason.FLEET_TOO_LARGE, text)

    @property
    def target(self) -> Mode:
        """What members train in: while a changed ``spec.target`` has not been taken up, still the old one."""
        before = self.state.precision
        return before if before is not None and before.reduced else self.spec.target

    def wanted(self, workload: WorkloadView) -> Mode:
        """What this member should train in: the target, or BF16 where that is tried against its overflow, or helped."""
        return Mode.BF16 if workload.key in self._in_bf16 else self.target

    @cached_property
    def _in_bf16(self) -> frozenset[str]:
        return in_bf16(self.state.mitigations)

    @cached_property
    def silent(self) -> Mapping[str, float]:
        """Members without believable metrics, and since when; of interest where the policy rolls back for that."""
        rules, evaluation = self.spec.evaluation, self.evaluation
        if rules.on_no_data is not Fallback.ROLLBACK or self.state.phase not in _WATCHED:
            return {}
        if evaluation is None:
            return self.state.silent
        known, now, grid_seconds = self.state.silent, evaluation.at, rules.no_data_limit_seconds / SILENCES_LIMIT
        if len(set(known.values())) > SILENCES_LIMIT:
            now = math.ceil(now / grid_seconds) * grid_seconds  # few times, and none before the silence began
        now, inside = round(now, 3), frozenset(self.state.members) - self.state.held_keys
        unknown = (v.workload.key for v in self.verdicts if v.unknown and v.workload.key in inside)
        return {key: min(known.get(key, now), now) for key in unknown}

    @cached_property
    def windows(self) -> Mapping[tuple[str, Signal], Mitigation]:
        """The windows of mitigation, open or not, by the workload's key and the signal."""
        return {(m.key, m.signal): m for m in self.state.mitigations}

    @cached_property
    def verdict_of(self) -> Mapping[str, Assessment]:
        """The verdicts, by the workload's key."""
        return {verdict.workload.key: verdict for verdict in self.verdicts}

    def reduced(self, workload: WorkloadView) -> bool:
        """A pod of it is asked to train in less than the fallback, or reports that it does."""
        safe = accepted_modes(self.fallback_of(workload), rollback=True)
        reported = {seen.mode for pod in workload.pods if (seen := self.signals.get(pod.name)) is not None}
        requested = {pod.effective_mode for pod in workload.pods}
        return bool((requested | reported) - safe - {None})

    @property
    def window_clear(self) -> bool:
        """The metrics' window no longer reaches back into the last rollback: its old breaches are not new ones."""
        incident, evaluation, window_seconds = self.state.incident, self.evaluation, self.spec.evaluation.window_seconds
        if evaluation is None:
            return incident is None
        return is_out_of_window(incident, at=evaluation.at, window_seconds=window_seconds)

    @cached_property
    def unknown(self) -> tuple[tuple[str, Signal, Reason], ...]:
        """(workload, why) for each judged member without believable data. In mid-rollback none is missed."""
        if self.state.phase is Phase.ROLLING_BACK and not self.state.by_canary:
            return ()
        return tuple((v.workload.name, signal, why) for v in self.verdicts for signal, why in v.unknown[:1])
