"""From what should be to the writes that are missing. Level-triggered: the same difference gives the same writes."""

from collections.abc import Iterable
from dataclasses import dataclass

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.core.actions import Action, RequestPod, WriteTemplate
from precision_operator.core.model import Evaluation, WorkloadView
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
    escalate: bool = False,
) -> list[Action]:
    """The missing writes, the urgent ones first: running pods, then templates, then settles."""
    requests: list[Action] = []
    templates: list[Action] = []
    settles: list[Action] = []
    for desired in wanted:
        progress = progress_of(desired.workload, desired.accepted, evaluation, desired.delivery)
        requests += _requests(desired, generation)
        template = _template(desired, progress, generation=generation, budget=budget, escalate=escalate)
        if template is not None:
            templates.append(template)
        elif desired.workload.settle is not None or (settle and _may_settle(desired, progress)):
            action = next_settle(
                desired.workload,
                desired.mode,
                accepted=desired.accepted,
                generation=generation,
                latch=_latch(desired),
            )
            if action is not None and (desired.workload.settle is not None or budget.settles > 0):
                budget.settles -= desired.workload.settle is None
                settles.append(action)
    return requests + templates + settles


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
        RequestPod(desired.workload, pod, desired.mode, generation)
        for pod in live_pods(desired.workload)
        if pod.effective_mode not in desired.accepted
    ]


def _template(
    desired: Desired, progress: Progress, *, generation: int, budget: Budget, escalate: bool
) -> WriteTemplate | None:
    workload = desired.workload
    if workload.settle is not None or workload.template_mode in desired.accepted:
        return None
    if workload.replicas == 0 and not workload.pods:
        return WriteTemplate(workload, desired.mode, generation, _latch(desired))
    if desired.delivery is Delivery.HOT:
        restart = escalate and not progress.acknowledged
    else:
        # Pods that already run safely (the gate started them so) are not restarted only to make the template agree.
        restart = desired.delivery is Delivery.RESTART and not (
            workload.pods and all(pod.effective_mode in desired.accepted for pod in workload.pods)
        )
    if not restart or budget.restarts <= 0:
        return None
    budget.restarts -= 1
    return WriteTemplate(workload, desired.mode, generation, _latch(desired))


def highest_generation(workloads: Iterable[WorkloadView]) -> int:
    """The highest request generation found on anything: what the next one must exceed."""
    found = 0
    for workload in workloads:
        if workload.template_request:
            found = max(found, workload.template_request.generation)
        if workload.generation_raw and workload.generation_raw.isdigit():
            found = max(found, int(workload.generation_raw))
        for pod in workload.pods:
            if pod.request:
                found = max(found, pod.request.generation)
    return found
