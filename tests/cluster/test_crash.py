"""The operator dies between its commit and its writes: the next one finishes, and nothing is done twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.prometheus import Prometheus
from precision_operator.api.state import Phase
from precision_operator.kube.access import Access
from precision_operator.kube.client import KubeClient
from precision_operator.settings import PrometheusEndpoint, Settings
from tests.support.cluster_fleet import deployment, policy
from tests.support.cluster_scene import HOT, NO_SPEED, PATIENCE_SECONDS, scraping
from tests.support.mortal import LEASE, MortalClient, lease_over, operating, state_of, until_phase
from tests.support.shadow_trainers import ShadowTrainers


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what a process that dies leaves open
@pytest.mark.parametrize("survive", [0, 2, 4])
@pytest.mark.parametrize("after_the_write", [False, True], ids=["before-the-write", "answer-lost"])
async def test_operator_killed_between_commit_and_patches_is_finished_by_the_next(
    kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path, survive: int, after_the_write: bool
) -> None:
    """Four writes are requests to the hot ones; the fifth takes the pod of the restart-only one away."""
    with ShadowTrainers(kubectl, namespace) as shadow, Prometheus(tmp_path, scraping(shadow.target)) as prometheus:
        settings = Settings(
            prometheus={"default": PrometheusEndpoint(prometheus.url)},
            watch_namespaces=(namespace,),
            namespace=namespace,
            lease=LEASE,
            http_port=0,
        )
        access = Access(operator_kubeconfig)
        objects = [*(deployment(name) for name in HOT), deployment("literal", hot=False), policy(criteria=NO_SPEED)]
        kubectl.apply(*({**o, "metadata": {**o["metadata"], "namespace": namespace}} for o in objects))
        mortal = await MortalClient.connect(access)
        mortal.phase, mortal.survive, mortal.after_the_write = "RollingBack", survive, after_the_write
        async with operating(mortal, settings, access) as first:
            await until_phase(shadow, "Healthy")
            shadow.overflow = {HOT[0]: 0.8, HOT[1]: 0.8}
            await asyncio.wait({first}, timeout=PATIENCE_SECONDS)
            assert first.done(), "the operator outlived its death"
        died = state_of(shadow)
        assert died.phase is Phase.ROLLING_BACK
        await lease_over(kubectl, namespace)
        async with operating(await KubeClient.connect(access), settings, access):
            status = await until_phase(shadow, "Held")
        assert status["generation"] == died.generation
        assert all(modes == {"fp32"} for modes in shadow.modes().values())
