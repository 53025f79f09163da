"""A rollback by canary with real trainers on a real kubelet: one is rolled back first, then the rest follows."""

from __future__ import annotations

from pathlib import Path

from lab.cluster import Cluster
from lab.demo.fleet import Trainer
from lab.demo.stage import workload_of
from lab.waiting import wait_for
from precision_operator.api.canary import CanaryVerdict
from precision_operator.api.workload import name_of
from precision_operator.signals.queries import BUILT_IN, render
from tests.support.running_fleets import Fleet, side_by_side

TRAINERS = tuple(Trainer(f"mild-{i}") for i in range(3))
FAULTY = [trainer.name for trainer in TRAINERS[:2]]


def _break_together(fleet: Fleet) -> None:
    """Found at one look: who is found alone is rolled back by itself, and one alone has nothing to be compared with."""
    fleet.suspend(True)
    for name in FAULTY:
        fleet.fault(name, "overflow=0.2")
    overflow = render(BUILT_IN["overflow"], fleet.namespace, window_seconds=10.0, min_steps=8)

    def broken() -> bool:
        shares = {workload_of(pod): share for pod, share in fleet.metrics.by_pod(overflow).items()}
        return all(shares.get(name, 0.0) > 0.15 for name in FAULTY)

    wait_for(broken, what="both to overflow", seconds=120)
    fleet.suspend(False)


def test_a_canary_is_rolled_back_first_compared_and_takes_the_rest_with_it(
    cluster: Cluster, prometheus_url: str, tmp_path: Path
) -> None:
    with side_by_side(cluster.control_plane, prometheus_url, tmp_path, [("canary", TRAINERS)]) as (fleet,):
        before = fleet.lives()
        fleet.follow(
            strategy={"steps": [{"setWeight": 100}]},
            rollback={
                "strategies": {"P2": "Canary"},
                "gradual": {"sustain": "5s"},
                "canary": {"window": "10m", "limit": "1h", "falseAlarmRate": 0.2},
                "mitigation": {"overflow": {"window": "0s"}},
            },
        )
        fleet.until_phase("Healthy")
        _break_together(fleet)
        comparing = fleet.until(
            lambda status: any(c["reason"] == "ComparingCanary" for c in status.get("conditions", [])),
            what="the canary to be compared",
            seconds=120,
        )
        assert (comparing["phase"], comparing["incident"]["strategy"]) == ("RollingBack", "Canary")
        (first,) = (name_of(key) for key in fleet.state().canary)
        assert first in FAULTY
        assert {name for name, mode in fleet.modes().items() if mode == "fp32"} == {first}

        fleet.until_phase("Held", seconds=400)
        comparison = fleet.state().comparison
        assert comparison is not None
        assert comparison.verdict is CanaryVerdict.BETTER
        flips = {t.name: fleet.events(t.name, "precision_changed")[-1] for t in TRAINERS}
        assert {flip["to"] for flip in flips.values()} == {"fp32"}
        others = [flip["time"] for name, flip in flips.items() if name != first]
        ended = comparison.ended_at or 0.0
        # Nobody of the rest moved before the comparison was over; a second is what the status' times are cut to.
        assert flips[first]["time"] < ended - 1.0 < min(others)
        wait_for(lambda: set(fleet.modes().values()) == {"fp32"}, what="all in FP32 by Prometheus", seconds=30)
        assert fleet.lives() == before
