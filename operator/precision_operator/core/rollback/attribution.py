"""Where the breached workloads run: one node or pool worse than all others is hardware, not precision."""

from collections.abc import Callable, Collection

from precision_operator.api.signals import Signal
from precision_operator.core.evidence.readings import Breach, Ok
from precision_operator.core.facts import Facts
from precision_operator.core.model import PodView, WorkloadView
from precision_operator.core.progress import live_pods

Place = Callable[[PodView], str]

_PLACES: tuple[tuple[str, Place], ...] = (("node", lambda pod: pod.node), ("node pool", lambda pod: pod.pool))


def only_place(facts: Facts, breached: Collection[str], signal: Signal) -> str | None:
    """What to say where all the breached (by key) run in one place, and enough others, elsewhere only, are known to be fine.

    Two of them at least, for one workload is always in one place; and as many others as make a fleet's breach. Others whose
    readings are Unknown speak for nobody, and one in breach elsewhere speaks against it.
    """
    enough = max(2, facts.spec.rollback.fleet_minimum)
    found = [w for w in facts.workloads if w.key in breached and live_pods(w)]
    if len(found) < enough:
        return None
    for what, place in _PLACES:
        places = set().union(*(_places(workload, place) for workload in found))
        if len(places) != 1 or "" in places:
            continue
        elsewhere = [
            verdict.readings.get(signal)
            for verdict in facts.verdicts
            if not _places(verdict.workload, place) & (places | {""})
        ]
        fine = sum(isinstance(reading, Ok) for reading in elsewhere)
        if fine >= enough and not any(isinstance(reading, Breach) for reading in elsewhere):
            return f"all on {what} {places.pop()}, while {fine} elsewhere are fine: look at its hardware"
    return None


def _places(workload: WorkloadView, place: Place) -> set[str]:
    return {place(pod) for pod in live_pods(workload)}
