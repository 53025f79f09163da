"""What earlier decisions left half done on workloads that nobody wants anything of now."""

from collections.abc import Iterator

from precision_operator.api.spec import Delivery
from precision_operator.core.facts import Facts
from precision_operator.core.outcome import Outcome
from precision_operator.core.plan import Desired
from precision_operator.core.progress import accepted_modes


def unfinished(facts: Facts, outcome: Outcome) -> Iterator[Desired]:
    """Settles that must end, since a paused Deployment would be ours to answer for; templates that must follow their pods.

    A retry, a changed target or selector, a template without the contract: whatever takes a workload out of the
    policy's hands in the middle of a settle, the settle is finished in the mode that it began with. A template that still
    says reduced precision while its pods have been rolled back is settled too.
    """
    wanted = {desired.workload.uid for desired in outcome.desired}
    safe = accepted_modes(facts.spec.fallback, rollback=True)
    deliveries = {w.uid: d for w, d in facts.movable}
    for workload in facts.observation.workloads:
        if workload.uid in wanted:
            continue
        delivery = deliveries.get(workload.uid, Delivery.NEW_ONLY)
        if workload.settle is not None:
            # NewOnly: the template is brought to its end, and no running pod is asked for anything.
            rollback = workload.settle.mode in safe and (outcome.status.gate_closed or workload.latch is not None)
            yield Desired(workload, workload.settle.mode, Delivery.NEW_ONLY, rollback=rollback)
        elif not facts.spec.suspend and delivery is not Delivery.NEW_ONLY and facts.lags(workload):
            yield Desired(workload, facts.spec.fallback, delivery, rollback=True)
