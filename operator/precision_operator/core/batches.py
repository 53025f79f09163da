"""The batches of a gradual rollback."""

import math
from collections.abc import Iterable

from precision_operator.api.incident import Incident
from precision_operator.api.spec import Delivery
from precision_operator.core.facts import Facts
from precision_operator.core.plan import Desired


def under_way(facts: Facts, incident: Incident, everything: Iterable[Desired]) -> tuple[Desired, ...]:
    """What was asked already, and as many more as one batch leaves room for: the breached first."""
    begun: list[Desired] = []
    waiting: list[Desired] = []
    unacknowledged, moved = 0, frozenset(facts.state.members)
    for desired in everything:
        progress = facts.progress(desired.workload, desired.accepted, desired.delivery)
        if progress.requested or desired.workload.key in facts.state.restarts:
            begun.append(desired)
            # Who was never moved has nothing to acknowledge, though no metrics say what it trains in.
            ours = desired.workload.key in moved or desired.workload.key in facts.state.changed
            unacknowledged += ours and not progress.acknowledged
        else:
            waiting.append(desired)
    size = max(1, math.floor(facts.spec.rollback.gradual.batch_share * facts.moved_count))
    waiting = [desired for desired in waiting if _in_turn(desired, facts, incident)]
    breached = frozenset(facts.state.breached)
    waiting.sort(key=lambda desired: (desired.workload.key not in breached, desired.workload.key))
    return (*begun, *waiting[: max(0, size - unacknowledged)])


def _in_turn(desired: Desired, facts: Facts, incident: Incident) -> bool:
    """A hot flip loses nothing; a restart waits for what is in flight, within bounds."""
    patience = facts.spec.rollback.gradual.in_flight_seconds
    return desired.delivery is not Delivery.RESTART or facts.now - incident.decided_at >= patience
