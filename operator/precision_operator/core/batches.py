"""The batches of a gradual rollback."""

import math
from collections.abc import Iterable

from precision_operator.api.incident import Incident
from precision_operator.api.spec import Delivery
from precision_operator.core.facts import Facts
from precision_operator.core.plan import Desired
from precision_operator.core.progress import progress_of


def under_way(facts: Facts, incident: Incident, everything: Iterable[Desired]) -> tuple[Desired, ...]:
    """What has been told already, and as many more as one batch leaves room for: the breached first.

    Nothing is remembered: what is under way shows on the workloads themselves.
    """
    told: list[Desired] = []
    waiting: list[Desired] = []
    unanswered = 0
    for desired in everything:
        progress = progress_of(desired.workload, desired.accepted, facts.evaluation, desired.delivery)
        restarting = desired.delivery is Delivery.RESTART and desired.workload.template_mode in desired.accepted
        if progress.told or restarting:
            told.append(desired)
            unanswered += not progress.acknowledged
        else:
            waiting.append(desired)
    size = max(1, math.floor(facts.spec.rollback.gradual.batch_share * facts.moved_count))
    waiting = [desired for desired in waiting if _in_turn(desired, facts, incident)]
    waiting.sort(key=lambda desired: (desired.workload.name not in incident.workloads, desired.workload.name))
    return (*told, *waiting[: max(0, size - unanswered)])


def _in_turn(desired: Desired, facts: Facts, incident: Incident) -> bool:
    """A hot flip loses nothing; a restart waits for what is in flight, within bounds."""
    patience = facts.spec.rollback.gradual.in_flight_seconds
    return desired.delivery is not Delivery.RESTART or facts.now - incident.decided_at >= patience
