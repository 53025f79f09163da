"""The benchmark in small: what does not depend on how busy the machine is must hold in every run."""

from __future__ import annotations

from pathlib import Path

from lab.bench.__main__ import rollbacks
from lab.bench.api import Api
from lab.bench.operators import SYSTEM
from lab.bench.rollbacks import BARE, FLEET, kubelets
from lab.cluster import ControlPlane
from lab.cluster.manifests import apply_product

FLEET_SIZE = 30


async def test_a_fleet_is_rolled_back_in_one_write_a_pod_and_ten_and_costs_none_at_rest(tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as plane:
        apply_product(plane.kubectl)
        for namespace in (SYSTEM, FLEET, BARE):
            plane.kubectl("create", "namespace", namespace)
            plane.kubectl.wait_for_namespace(namespace)
        with kubelets(plane):
            async with Api(plane) as api:
                found = await rollbacks(plane, api, n=FLEET_SIZE, rounds=1, kills=1, steady_seconds=30.0)
    (measured,) = found["rounds"]
    assert FLEET_SIZE <= measured["api_writes"] <= FLEET_SIZE + 10
    steady = found["steady"]
    assert steady["writes"] == 0
    passes = steady["queries_per_interval"] / steady["metrics"] * steady["seconds"] / 15.0
    assert 1 <= round(passes) <= 3, "one query a metric an interval, whichever passes the two intervals held"
    assert len(found["takeover_seconds"]) == 1
