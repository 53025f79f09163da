"""The settle, one write at a time: make a hot flip last without a rollout.

Kubernetes' Deployment controller rolls out when the template equals no ReplicaSet's. So: pause it, change the ReplicaSet's
template first, then the Deployment's, and resume: it finds a ReplicaSet equal to the template. Both waits matter (the
pause must be observed; the controller must have seen that the ReplicaSet differs): without them some roll out.
"""

from precision_operator.api.modes import Mode
from precision_operator.core.actions import Settle, SettleStage
from precision_operator.core.model import WorkloadView


def next_settle(
    workload: WorkloadView, mode: Mode, *, accepted: frozenset[Mode], generation: int, latch: Mode | None
) -> Settle | None:
    """The next write, or None where the workload is settled, must be waited for, or may not be touched."""
    intent = workload.settle
    if intent is None:
        if workload.template_mode in accepted or not workload.rolled_out:
            return None
        if any(pod.crashing for pod in workload.pods):
            return None
        return Settle(workload, SettleStage.PAUSE, mode, generation, latch)
    if not workload.observed:
        return None
    if not workload.paused:
        # Somebody resumed it in the middle: what the controller made of that must be over before it starts again.
        return Settle(workload, SettleStage.PAUSE, mode, generation, latch) if workload.rolled_out else None
    # The intent's own mode is finished first: what comes after it starts a new settle.
    stage = SettleStage.REPLICASET if workload.updated_replicas > 0 else SettleStage.RESUME
    return Settle(workload, stage, intent.mode, intent.generation, latch if intent.mode is mode else workload.latch)
