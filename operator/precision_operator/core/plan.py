"""From what should be to the writes that are missing. Level-triggered: the same difference gives the same writes."""

from collections.abc import Iterable
from dataclasses import dataclass

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.api.wire import generation_text
from precision_operator.core.actions import Action, Latch, RequestPod, Settle, Tuning, WriteTemplate
from precision_operator.core.model import Evaluation, PodView, WorkloadView
from precision_operator.core.progress import Progress, accepted_modes, live_pods, progress_of
from precision_operator.core.settle import next_settle


@dataclass(frozen=True, slots=True)
class Desired:
    """What one workload should be in."""

    workload: WorkloadView
    mode: Mode
    delivery: Delivery
    rollback: bool = False
    """On the way down a workload that is already as safe needs no write; on the way up it must match."""
    latch: bool = False
    """It was moved and rolled back: that must stand on the workload itself."""
    unlatch: bool = False
    """A person has asked for another attempt: the latch comes off."""
    rewind: bool = False
    """Its weights are poisoned: another precision alone would not mend them."""
    insist: bool = False
    """What somebody else writes into the template is corrected again and again."""
    escalate: bool = False
    """It did not acknowledge in time: its pods are restarted, where they can be seen to train in something else."""
    force: bool = False
    """Past the deadline, restarted also where they cannot be seen."""
    tuning: Tuning | None = None
    """What its loss scaler is asked for."""
    tuned_by: int = 0
    """The generation of that: a pod whose request is older is told, though its mode is right."""

    @property
    def accepted(self) -> frozenset[Mode]:
        """The modes that need no write."""
        return accepted_modes(self.mode, rollback=self.rollback)


@dataclass(slots=True)
class Budget:
    """What may still be started in this pass."""

    restarts: int
    settles: int


def plan(
    wanted: Iterable[Desired],
    evaluation: Evaluation | None,
    *,
    generation: int,
    budget: Budget,
    settle: bool,
) -> list[Action]:
    """The missing writes, the urgent ones first: running pods, then templates, then settles and latches."""
    requests: list[Action] = []
    templates: list[Action] = []
    settles: list[Action] = []
    for desired in wanted:
        progress = progress_of(desired.workload, desired.accepted, evaluation, desired.delivery)
        requests += _requests(desired, generation)
        template = _template(desired, progress, evaluation, generation=generation, budget=budget)
        if template is not None:
            templates.append(template)
            continue
        action = _lasting(desired, progress, generation=generation, settle=settle)
        if action is None:
            continue
        if isinstance(action, Settle) and desired.workload.settle is None:
            if budget.settles <= 0:
                continue
            budget.settles -= 1
        settles.append(action)
    return requests + templates + settles


def _lasting(desired: Desired, progress: Progress, *, generation: int, settle: bool) -> Settle | Latch | None:
    """The next write that makes a finished move last: of its settle, else its latch."""
    workload = desired.workload
    may = settle and _may_settle(desired, progress) and not conflicted(desired, generation)
    if workload.settle is not None or may:
        accepted, latch = desired.accepted, _latch(desired)
        step = next_settle(workload, desired.mode, accepted=accepted, generation=generation, latch=latch)
        if step is not None or workload.settle is not None:
            return step
    if desired.unlatch and workload.latch is not None:
        return Latch(workload, None, generation)
    # A template that is still to be written gets its latch with that write; before, our mark would claim what is not so.
    lasting = workload.template_mode in desired.accepted
    if settle and desired.latch and lasting and workload.latch not in desired.accepted:
        return Latch(workload, desired.mode, generation)
    return None


def conflicted(desired: Desired, generation: int) -> bool:
    """Somebody wrote another mode into the template after us, in the same generation: correcting it would never end.

    While the gate is closed it is corrected all the same: safety is worth the quarrel.
    """
    workload = desired.workload
    ours = generation_text(workload.generation_raw) == generation and workload.settle is None
    return ours and not desired.insist and workload.template_mode not in desired.accepted


def _may_settle(desired: Desired, progress: Progress) -> bool:
    """A hot workload settles when its processes have acknowledged; NewOnly is nothing but a settle."""
    if desired.delivery is Delivery.NEW_ONLY:
        return True
    return desired.delivery is Delivery.HOT and progress.acknowledged


def _latch(desired: Desired) -> Mode | None:
    return desired.mode if desired.rollback else None


def _requests(desired: Desired, generation: int) -> list[Action]:
    if desired.delivery is not Delivery.HOT:
        return []
    return [
        RequestPod(desired.workload, pod, desired.mode, generation, desired.rewind, desired.tuning)
        for pod in live_pods(desired.workload)
        if pod.effective_mode not in desired.accepted or _untuned(desired, pod)
    ]


def _untuned(desired: Desired, pod: PodView) -> bool:
    return desired.tuning is not None and (pod.request is None or pod.request.generation < desired.tuned_by)


def _template(
    desired: Desired, progress: Progress, evaluation: Evaluation | None, *, generation: int, budget: Budget
) -> WriteTemplate | None:
    workload = desired.workload
    # Told first, restarted later: who was away past the deadline still lets the trainer answer.
    if desired.escalate and desired.delivery is Delivery.HOT and _deaf(desired, progress, evaluation):
        return _restart(desired, generation=generation, budget=budget)
    if workload.settle is not None or workload.template_mode in desired.accepted or conflicted(desired, generation):
        return None
    if workload.replicas == 0 and not workload.pods:
        return WriteTemplate(workload, desired.mode, generation, _latch(desired))
    if desired.delivery is not Delivery.RESTART:
        return None
    # Pods that already run safely (the gate started them so) are not restarted only to make the template agree. On the way
    # up a reference is overridden all the same: what a ConfigMap says is not ours to count on.
    agrees = desired.rollback or workload.template_mode is not None
    if agrees and workload.pods and all(pod.effective_mode in desired.accepted for pod in workload.pods):
        return None
    return _spend(desired, generation=generation, budget=budget)


def _deaf(desired: Desired, progress: Progress, evaluation: Evaluation | None) -> bool:
    """Told, alive, and not heard to have done it. Silence is not that, unless the deadline is past."""
    if not progress.told or progress.acknowledged or any(pod.crashing for pod in desired.workload.pods):
        return False
    heard = evaluation is not None and any(p.name in evaluation.pods for p in live_pods(desired.workload))
    return heard or desired.force


def _restart(desired: Desired, *, generation: int, budget: Budget) -> WriteTemplate | None:
    """Once a generation: a template that carries it has already restarted its pods, whatever mode it had before."""
    carried = desired.workload.template_request
    if not desired.workload.hot or (carried is not None and carried.generation >= generation):
        return None
    return _spend(desired, generation=generation, budget=budget)


def _spend(desired: Desired, *, generation: int, budget: Budget) -> WriteTemplate | None:
    if budget.restarts <= 0:
        return None
    budget.restarts -= 1
    return WriteTemplate(desired.workload, desired.mode, generation, _latch(desired))


def highest_generation(workloads: Iterable[WorkloadView]) -> int:
    """The highest request generation found on anything: what the next one must exceed."""
    found = 0
    for workload in workloads:
        if workload.template_request:
            found = max(found, workload.template_request.generation)
        found = max(found, generation_text(workload.generation_raw) or 0)
        for pod in workload.pods:
            if pod.request:
                found = max(found, pod.request.generation)
    return found
